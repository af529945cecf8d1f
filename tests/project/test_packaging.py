"""The wheel holds what a user needs, and each extra brings all that its process imports and no more."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_worker.kernels.cpu.build import PACKAGED_FOLDER, library_name
from gpu_worker.kernels.cpu.instruction_sets import INSTRUCTION_SETS

if TYPE_CHECKING:
    from tests.project.conftest import Environment, Wheel

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"chairlift", "deploy", "gateway", "gpu_worker", "scheduler_svc"}

# Modules of the GPU's kernels need triton, which the extra `gpu` names and CUDA builds of torch bring.
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name != "triton":
                    raise
    print(name, package.__file__)
"""

COMPILER = """\
#!/bin/sh
# Stands in for a C++ compiler: an empty file for each output asked for, and no knowledge of AMX.
case "$*" in *amx*) echo "error: unknown option" >&2; exit 1;; esac
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


def test_wheel_holds_the_packages_the_contract_and_nothing_of_the_workshop(wheel: "Wheel") -> None:
    names = wheel.names()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    contract = {"inference.proto", "ops.proto", "service_config.json", "inference_pb2.py", "ops_pb2_grpc.pyi"}
    assert {f"chairlift/v1/{name}" for name in contract} <= names
    assert "chairlift/py.typed" in names
    # Compiled where it runs.
    assert "gpu_worker/kernels/cuda/paged_decode.cu" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".so", ".o", ".sock"))]
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert {f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= names


def test_torch_comes_with_the_worker_only(wheel: "Wheel") -> None:
    extras = ("", "gateway", "scheduler", "worker", "bench")
    assert {extra for extra in extras if "torch" in wheel.closure({extra})} == {"worker"}


@pytest.mark.parametrize(
    ("extras", "packages", "absent"),
    [
        ((), ["chairlift.v1", "chairlift.client"], ["torch", "numpy", "tokenizers", "grpc_health"]),
        (("gateway",), ["gateway", "chairlift"], ["torch", "transformers", "safetensors"]),
        (("scheduler",), ["scheduler_svc", "chairlift"], ["torch", "transformers", "numpy", "tokenizers"]),
        (("worker",), ["gpu_worker", "chairlift.ipc", "chairlift.runtime"], ["transformers", "tokenizers"]),
    ],
)
def test_each_extra_brings_all_that_its_process_imports_and_no_more(
    environment: "Callable[..., Environment]", extras: tuple[str, ...], packages: list[str], absent: list[str]
) -> None:
    made = environment(*extras)
    done = made.run("python", "-c", IMPORT_ALL, *packages)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout
    for module in absent:
        failed = made.run("python", "-c", f"import {module}")
        assert f"ModuleNotFoundError: No module named '{module}'" in failed.stderr


def test_command_of_a_bare_installation_answers(environment: "Callable[..., Environment]") -> None:
    """Someone who only calls a server installs no extra: `chairlift` must start there."""
    done = environment().run("chairlift", "--help")
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout
    assert "generate" in done.stdout


def libraries_in(wheel: "Wheel") -> set[str]:
    return {name for name in wheel.names() if name.startswith("gpu_worker/kernels/cpu/lib/")}


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the CPU kernels are for Linux on x86-64"
)
def test_kernels_are_compiled_into_the_wheel_where_the_worker_looks_for_them(
    build_wheel: "Callable[..., Wheel]", tmp_path: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    built = build_wheel(CXX=str(compiler))
    sets = [each for each in INSTRUCTION_SETS if each.name != "amx"]
    wanted = {library_name(each.name, each.compiler_flags) for each in sets}
    assert libraries_in(built) == {f"{PACKAGED_FOLDER.relative_to(ROOT).as_posix()}/{name}" for name in wanted}
    assert built.path.name.endswith("-py3-none-linux_x86_64.whl")
    assert "no CPU kernels for amx in the wheel" in built.build_log


def test_without_a_compiler_the_wheel_is_a_pure_one_and_the_build_says_so(build_wheel: "Callable[..., Wheel]") -> None:
    built = build_wheel(CXX="no-such-compiler")
    assert libraries_in(built) == set()
    assert built.path.name.endswith("-py3-none-any.whl")
    has_kernels = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    assert built.build_log.count("no CPU kernels in the wheel: no C++ compiler") == has_kernels
