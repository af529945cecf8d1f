"""The wheel, installed into environments that hold exactly what each extra asks for.

An environment is made of links to distributions that are installed here: the closure of the wheel's own metadata and
nothing else. So a dependency that is used and not declared fails, and no package index is needed.
"""

import os
import platform
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpu_worker.kernels.cpu.build import PACKAGED_FOLDER, library_name
from gpu_worker.kernels.cpu.instruction_sets import INSTRUCTION_SETS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"chairlift", "deploy", "gateway", "gpu_worker", "scheduler_svc"}

# Triton's kernels need a package that comes with the CUDA builds of torch.
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if not module.name.endswith("__main__") and not module.name.startswith("gpu_worker.kernels.triton."):
            importlib.import_module(module.name)
    print(name, package.__file__)
"""


COMPILER = """\
#!/bin/sh
# Stands in for a C++ compiler: an empty file for each output asked for, and no knowledge of AMX.
case "$*" in *amx*) echo "error: unknown option" >&2; exit 1;; esac
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


def build_wheel(folder: Path, **variables: str) -> tuple[Path, str]:
    """The wheel, and what its build had to say."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the compiled kernels, which take a while and have tests of their own."""
    built, _ = build_wheel(tmp_path_factory.mktemp("wheel"), HATCH_BUILD_NO_HOOKS="true")
    return built


def metadata_of(wheel: Path) -> Distribution:
    name, version = wheel.name.split("-")[:2]
    return PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def requirements_of(found: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in found.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement


def closure(wheel: Path, extras: set[str]) -> dict[str, Distribution]:
    """Every distribution that an installer would bring for the wheel with these extras."""
    needed: dict[str, Distribution] = {}
    waiting = list(requirements_of(metadata_of(wheel), extras))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed or requirement.extras:
            needed[name] = distribution(name)
            assert needed[name].version in requirement.specifier, f"{name} {needed[name].version} is not {requirement}"
            waiting.extend(requirements_of(needed[name], requirement.extras))
    return needed


@cache
def owners() -> Mapping[str, list[str]]:
    """The distributions installed here, by top-level module or namespace."""
    return packages_distributions()


def link(found: Distribution, site_packages: Path) -> None:
    """Makes a distribution's modules and metadata appear in another environment.

    A folder is linked as a whole unless it is a namespace that several distributions share.
    """
    for file in found.files or []:
        if ".." in file.parts:
            continue
        is_shared = len(set(owners().get(file.parts[0], ()))) > 1
        part = Path(file) if is_shared else Path(file.parts[0])
        target = site_packages / part
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(found.locate_file(part))))


class Environment:
    """A virtual environment with the wheel and what its extras ask for."""

    def __init__(self, folder: Path, wheel: Path, extras: set[str], others: tuple[str, ...] = ()) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        for found in [*closure(wheel, extras).values(), *(distribution(other) for other in others)]:
            link(found, site_packages)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python")]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs outside the source tree, with no variable that points back at it."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "CHAIRLIFT"))}
        command = [str(self.bin / program), *arguments]
        return subprocess.run(command, cwd=self.bin, env=clean, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    @cache
    def make(extra: str) -> Environment:
        return Environment(tmp_path_factory.mktemp(extra or "base"), wheel, {extra} if extra else set())

    return make


def test_wheel_holds_the_packages_the_contract_and_nothing_of_the_workshop(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    contract = {"inference.proto", "ops.proto", "service_config.json", "inference_pb2.py", "ops_pb2_grpc.pyi"}
    assert {f"chairlift/v1/{name}" for name in contract} <= names
    assert "chairlift/py.typed" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".so", ".o", ".sock"))]
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert {f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= names


def test_torch_comes_with_the_worker_only(wheel: Path) -> None:
    with_torch = {
        extra for extra in ("", "gateway", "scheduler", "worker", "bench") if "torch" in closure(wheel, {extra})
    }
    assert with_torch == {"worker"}


@pytest.mark.parametrize(
    ("extra", "packages", "absent"),
    [
        ("", ["chairlift.v1", "chairlift.client"], ["torch", "numpy", "tokenizers", "grpc_health"]),
        ("gateway", ["gateway", "chairlift"], ["torch", "transformers", "safetensors"]),
        ("scheduler", ["scheduler_svc", "chairlift"], ["torch", "transformers", "numpy", "tokenizers"]),
        ("worker", ["gpu_worker", "chairlift.ipc", "chairlift.runtime"], ["transformers", "tokenizers", "grpc_health"]),
    ],
)
def test_each_extra_brings_all_that_its_process_imports_and_no_more(
    environment: Callable[[str], Environment], extra: str, packages: list[str], absent: list[str]
) -> None:
    made = environment(extra)
    done = made.run("python", "-c", IMPORT_ALL, *packages)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout
    for module in absent:
        failed = made.run("python", "-c", f"import {module}")
        assert f"ModuleNotFoundError: No module named '{module}'" in failed.stderr


def test_command_of_a_bare_installation_answers(environment: Callable[[str], Environment]) -> None:
    """Someone who only calls a server installs no extra: `chairlift` must start there."""
    done = environment("").run("chairlift", "--help")
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout
    assert "generate" in done.stdout


def libraries_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gpu_worker/kernels/cpu/lib/")}


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the CPU kernels are for Linux on x86-64"
)
def test_kernels_are_compiled_into_the_wheel_where_the_worker_looks_for_them(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    built, said = build_wheel(tmp_path, CXX=str(compiler))
    sets = [each for each in INSTRUCTION_SETS if each.name != "amx"]
    wanted = {library_name(each.name, each.compiler_flags) for each in sets}
    assert libraries_in(built) == {f"{PACKAGED_FOLDER.relative_to(ROOT).as_posix()}/{name}" for name in wanted}
    assert built.name.endswith("-py3-none-linux_x86_64.whl")
    assert "no CPU kernels for amx in the wheel" in said


def test_without_a_compiler_the_wheel_is_a_pure_one_and_the_build_says_so(tmp_path: Path) -> None:
    built, said = build_wheel(tmp_path, CXX="no-such-compiler")
    assert libraries_in(built) == set()
    assert built.name.endswith("-py3-none-any.whl")
    assert said.count("no CPU kernels in the wheel: no C++ compiler") == (platform.machine() == "x86_64")
