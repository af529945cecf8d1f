"""The kernel compiles for every architecture that is served, by whichever compiler is at hand, and spills nothing."""

import importlib
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ARCHITECTURES = (80, 90, 100)
SHAPES = [(9, 3, 64, 16), (32, 8, 128, 16), (32, 4, 128, 32), (8, 1, 256, 16)]


def test_no_architecture_spills(kernel_source: str, capsys: pytest.CaptureFixture[str]) -> None:
    compiler = importlib.import_module("gpu_worker.kernels.cuda.compiler")
    decode = importlib.import_module("gpu_worker.kernels.cuda.decode")
    shapes = importlib.import_module("gpu_worker.kernels.triton.shapes")
    try:
        found = compiler.find_compiler()
    except compiler.CompilerError as error:
        pytest.skip(f"{error}: the CUDA C++ kernel is not compiled here")
    lines = [f"compiled by {found.version}", "heads  head size  page  arch   kernel          regs  spill  shared"]
    for shape in SHAPES:
        defines = decode.defines_of(shapes.AttentionShape(*shape))
        for architecture in ARCHITECTURES:
            cubin = found.compile(kernel_source, "paged_decode.cu", architecture, defines)
            for name, registers, stack, shared in _usage(cubin):
                heads = f"{shape[0]}/{shape[1]}"
                lines.append(
                    f"{heads:6s} {shape[2]:9d} {shape[3]:5d}  sm_{architecture:<3d} {name:14s} "
                    f"{registers:5d} {stack:6d} {shared:7d}"
                )
                assert stack == 0, f"{lines[-1]} spills"
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def test_refused_source_is_told_with_the_compilers_log() -> None:
    compiler = importlib.import_module("gpu_worker.kernels.cuda.compiler")
    try:
        found = compiler.find_compiler()
    except compiler.CompilerError as error:
        pytest.skip(f"{error}: nothing to ask")
    with pytest.raises(compiler.CompilerError, match="not_declared"):
        found.compile("__global__ void f() { not_declared(); }", "f.cu", 90, [])


def _usage(cubin: bytes) -> list[tuple[str, int, int, int]]:
    """Name, registers, stack and static shared memory of each kernel, by the tool that Triton brings."""
    triton = importlib.import_module("triton")
    assert triton.__file__ is not None
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    assert len(found) == 2, text
    return [(name, int(registers), int(stack), int(shared)) for name, registers, stack, shared in found]
