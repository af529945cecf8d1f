"""Proof of the CUDA C++ kernel without a GPU: compiled for every architecture, and run on the CPU under a sanitizer."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EMULATION = Path(__file__).parent / "emulation"
SOURCE = ROOT / "gpu_worker" / "kernels" / "cuda" / "paged_decode.cu"
PROOF_TIMEOUT_S = 600

Sizes = tuple[int, int, int, int]
"""Head size, query heads a KV head, KV heads, tokens a page."""


@pytest.fixture(scope="session", autouse=True)
def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the package triton is not installed (Linux x86-64 only): the kernel shares its wrappers' checks")


@pytest.fixture(scope="session")
def run_emulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Builds the stand-in driver for a shape, from the given source text, and runs launcher and kernel on it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the kernel cannot be run on the CPU")

    def run(sizes: Sizes, source: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("emulated")
        kernel, library = folder / "kernel.cu", folder / "libstand_in.so"
        kernel.write_text(source)
        names = ("HEAD_DIM", "GROUP", "NUM_KV_HEADS", "BLOCK_SIZE")
        defines = [f"-D{name}={size}" for name, size in zip(names, sizes, strict=True)]
        flags = ["-O1", "-g", "-std=c++17", "-fPIC", "-shared", "-fsanitize=address", f"-I{EMULATION}"]
        command = [compiler, *flags, *defines, f'-DKERNEL_SOURCE="{kernel}"', "-o", str(library)]
        _call([*command, str(EMULATION / "stand_in_driver.cc")], dict(os.environ)).check_returncode()
        sanitizer = subprocess.run(
            [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        ).stdout.strip()
        environment = dict(os.environ, OMP_NUM_THREADS="1", LD_PRELOAD=sanitizer)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
        # Fibers have stacks of their own; Python frees nothing at its end.
        environment["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
        module = "tests.gpu_worker.kernels_cuda.emulation.run"
        return _call([sys.executable, "-m", module, str(library), *map(str, sizes)], environment)

    return run


def _call(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PROOF_TIMEOUT_S, check=False
    )


@pytest.fixture(scope="session")
def kernel_source() -> str:
    return SOURCE.read_text()
