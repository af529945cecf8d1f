"""Compiles the CUDA C++ kernel for every architecture that is served, by whichever compiler is at hand, and prints what
it takes: ``python -m … compile_all`` exits 1 when a shape does not compile or spills.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import triton

from gpu_worker.kernels.cuda.compiler import Compiler, CompilerError, find_compiler
from gpu_worker.kernels.cuda.decode import SOURCE, defines_of
from gpu_worker.kernels.triton.shapes import AttentionShape

ARCHITECTURES = (80, 90, 100)
SHAPES = (
    AttentionShape(9, 3, 64, 16),
    AttentionShape(32, 8, 128, 16),
    AttentionShape(32, 4, 128, 32),
    AttentionShape(8, 1, 256, 16),
)
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def main() -> int:
    """Exit code."""
    compiler = find_compiler()
    print(f"compiled by {compiler.version}")
    print("heads  head size  page  arch   kernel          regs  spill  shared")
    spills = sum(
        _spills(compiler, source, shape, architecture)
        for source in (SOURCE.read_text(),)
        for shape in SHAPES
        for architecture in ARCHITECTURES
    )
    _check_refusal(compiler)
    print(f"{spills} spills")
    return 1 if spills else 0


def _spills(compiler: Compiler, source: str, shape: AttentionShape, architecture: int) -> int:
    cubin = compiler.compile(source, SOURCE.name, architecture, defines_of(shape))
    spilled = 0
    for name, registers, stack, shared in _usage(cubin):
        heads = f"{shape.num_heads}/{shape.num_kv_heads}"
        print(
            f"{heads:6s} {shape.head_dim:9d} {shape.block_size:5d}  sm_{architecture:<3d} {name:14s} "
            f"{registers:5d} {stack:6d} {shared:7d}",
            flush=True,
        )
        spilled += stack > 0
    return spilled


def _check_refusal(compiler: Compiler) -> None:
    """Source that a compiler refuses is told with its log."""
    with pytest.raises(CompilerError, match="not_declared"):
        compiler.compile("__global__ void f() { not_declared(); }", "f.cu", 90, [])


def _usage(cubin: bytes) -> list[tuple[str, int, int, int]]:
    """Name, registers, stack and static shared memory of each kernel, by the tool that Triton brings."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    assert len(found) == 2, text
    return [(name, int(registers), int(stack), int(shared)) for name, registers, stack, shared in found]


if __name__ == "__main__":
    sys.exit(main())
