"""Puts the compiled CPU kernels into the wheel, one library an instruction set, so that users need no compiler.

Without a C++ compiler, or on another system, the wheel is a pure one: the worker then compiles the kernels at first
use, or takes its torch path. An editable install compiles nothing here. HATCH_BUILD_NO_HOOKS=true leaves this out.
"""

import importlib.util
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "gpu_worker/kernels/cpu"


class CpuKernelsHook(BuildHookInterface[Any]):
    """Compiles before the wheel is written, and cleans up after."""

    PLUGIN_NAME = "custom"
    folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the libraries to `build_data`, and makes the wheel one for this platform."""
        if version == "editable" or platform.system() != "Linux" or platform.machine() != "x86_64":
            return
        self.folder = Path(tempfile.mkdtemp(prefix="chairlift-kernels-"))
        libraries = self._compile(self.folder)
        if libraries:
            build_data["force_include"] |= {str(library): f"{KERNELS}/lib/{library.name}" for library in libraries}
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was compiled; the wheel holds it now."""
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def _compile(self, folder: Path) -> list[Path]:
        build = self._load("build")
        libraries: list[Path] = []
        try:
            compiler = build.find_compiler()
        except build.BuildError as error:
            self.app.display_warning(f"no CPU kernels in the wheel: {error}")
            return libraries
        for wanted in self._load("instruction_sets").INSTRUCTION_SETS:
            library = folder / build.library_name(wanted.name, wanted.compiler_flags)
            try:
                build.compile_library(library, wanted.compiler_flags, compiler)
            except build.BuildError as error:
                # An older compiler knows fewer instruction sets; the others still serve.
                self.app.display_warning(f"no CPU kernels for {wanted.name} in the wheel: {error}")
            else:
                libraries.append(library)
        return libraries

    def _load(self, name: str) -> ModuleType:
        """A module of the kernels by its path: their package's own imports (torch) are not there while building."""
        path = Path(self.root, KERNELS, f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"chairlift_build_{name}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
