"""From CUDA C++ to machine code: NVRTC by ctypes, or nvcc where only that is at hand. Knows no kernel."""

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

_LIBRARY_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_NVCC_TIMEOUT_S = 120


class CompilerError(RuntimeError):
    """No compiler, or source that it refuses. The message holds its log."""


class Compiler(Protocol):
    """Makes a cubin."""

    @property
    def version(self) -> str:
        """Part of the key that results are kept under."""
        ...

    def compile(self, source: str, name: str, architecture: int, defines: Sequence[str]) -> bytes:
        """A cubin for ``sm_<architecture>``; `defines` like ``HEAD_DIM=64``. Raises CompilerError."""
        ...


class Nvrtc:
    """NVIDIA's run-time compiler, from torch's own packages or the system."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the library cannot be loaded."""
        # NVRTC opens its built-in headers by name alone, which finds them outside the loader's path only once loaded.
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")) if "/" in path else []:
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), None)
        self.version = f"nvrtc-{major.value}.{minor.value}"

    def compile(self, source: str, name: str, architecture: int, defines: Sequence[str]) -> bytes:
        """As `Compiler.compile`."""
        options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17", *(f"-D{define}" for define in defines)]
        packed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        program = ctypes.c_void_p()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        self._check(made, None)
        try:
            self._check(self._library.nvrtcCompileProgram(program, len(options), packed), program)
            size = ctypes.c_size_t()
            self._check(self._library.nvrtcGetCUBINSize(program, ctypes.byref(size)), program)
            cubin = ctypes.create_string_buffer(size.value)
            self._check(self._library.nvrtcGetCUBIN(program, cubin), program)
            return cubin.raw
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _check(self, code: int, program: ctypes.c_void_p | None) -> None:
        if code == 0:
            return
        log = ""
        if program is not None:
            size = ctypes.c_size_t()
            self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(max(1, size.value))
            self._library.nvrtcGetProgramLog(program, text)
            log = f": {text.value.decode(errors='replace').strip()}"
        raise CompilerError(f"NVRTC error {code}{log}")


class Nvcc:
    """The toolkit's compiler."""

    def __init__(self, path: str) -> None:
        self._path = path
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=_NVCC_TIMEOUT_S)
        self.version = f"nvcc {told.stdout.strip().splitlines()[-1]}"

    def compile(self, source: str, name: str, architecture: int, defines: Sequence[str]) -> bytes:
        """As `Compiler.compile`."""
        with tempfile.TemporaryDirectory() as folder:
            written, cubin = Path(folder) / name, Path(folder) / "out.cubin"
            written.write_text(source)
            command = [self._path, "-cubin", f"-arch=sm_{architecture}", "-std=c++17", "-o", str(cubin), str(written)]
            command += [f"-D{define}" for define in defines]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_NVCC_TIMEOUT_S)
            if done.returncode:
                raise CompilerError(f"nvcc exit code {done.returncode}: {done.stderr.strip()}")
            return cubin.read_bytes()


def find_compiler() -> Compiler:
    """NVRTC where it can be loaded, else nvcc. Raises CompilerError that says what was looked for."""
    for path in _nvrtc_candidates():
        try:
            return Nvrtc(path)
        except OSError:
            continue
    if nvcc := shutil.which("nvcc"):
        return Nvcc(nvcc)
    raise CompilerError(f"no CUDA compiler: neither {', '.join(_LIBRARY_NAMES)} nor nvcc was found")


def _nvrtc_candidates() -> Iterator[str]:
    """In NVIDIA's Python packages, which torch's CUDA builds depend on, then wherever the loader looks."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or []) if package else []:
        for name in _LIBRARY_NAMES:
            yield from map(str, sorted(Path(folder).glob(f"*/lib/{name}")))
    yield from _LIBRARY_NAMES
