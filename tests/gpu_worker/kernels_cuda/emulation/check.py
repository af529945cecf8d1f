"""Launcher and CUDA C++ kernel on the CPU, right and with planted bugs: ``python -m … check``.

Exits 1 when one that is right fails, or a bug is not caught.

Builds the stand-in driver for each shape with AddressSanitizer, then runs all of them in one process that forks for
each, under the sanitizer's library: a fiber a thread, NaN where no row owns a slot.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_worker.kernels.cuda.decode import SOURCE

ROOT = Path(__file__).resolve().parents[4]
EMULATION = Path(__file__).parent

Sizes = tuple[int, int, int, int]
"""Head size, query heads a KV head, KV heads, tokens a page."""

SHAPES: tuple[Sizes, ...] = ((64, 3, 2, 16), (128, 4, 1, 32), (256, 8, 1, 16))

PLANTED = {
    "one position too many": ("GROUPS + place < end;", "GROUPS + place <= end;"),
    "page of another KV head": ("* NUM_KV_HEADS + kv_head) * BLOCK_SIZE", "* NUM_KV_HEADS) * BLOCK_SIZE"),
    "accumulator not rescaled": ("acc[g][i] * alpha + weight", "acc[g][i] + weight"),
    "lengths of splits disagree": ("const int used = size > 0", "const int used = splits + 0 * size > 0"),
    "out of the block table": ("table[position / BLOCK_SIZE]", "table[position]"),
    "barrier in a branch": ("g) {\n    __syncthreads();", "g) {\n    if (threadIdx.x < 64) __syncthreads();"),
}


def main() -> int:
    """Exit code."""
    compiler = shutil.which("g++")
    if compiler is None:
        print("skipped: no g++, so the CUDA C++ kernel is not run on the CPU")
        return 0
    source = SOURCE.read_text()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for index, sizes in enumerate(SHAPES):
            _build(compiler, folder, f"right-{index}", sizes, source)
        for index, (old, new) in enumerate(PLANTED.values()):
            assert old in source, f"the place of a planted bug is gone: {old}"
            _build(compiler, folder, f"planted-{index}", SHAPES[0], source.replace(old, new))
        outcomes, told = _run(compiler, folder)
    wrong = 0
    for index, sizes in enumerate(SHAPES):
        is_right = outcomes[f"right-{index}"] == 0
        wrong += not is_right
        print(f"{'ok' if is_right else 'WRONG':9s} head size {sizes[0]}, group {sizes[1]}, page {sizes[3]}")
    for index, bug in enumerate(PLANTED):
        is_caught = outcomes[f"planted-{index}"] != 0
        wrong += not is_caught
        print(f"{'caught' if is_caught else 'SURVIVED':9s} {bug}")
    # The reports of planted bugs are of interest only where something is wrong.
    if wrong:
        print(told)
    return 1 if wrong else 0


def _build(compiler: str, folder: Path, name: str, sizes: Sizes, source: str) -> None:
    kernel = folder / f"{name}.cu"
    kernel.write_text(source)
    macros = ("HEAD_DIM", "GROUP", "NUM_KV_HEADS", "BLOCK_SIZE")
    defines = [f"-D{macro}={size}" for macro, size in zip(macros, sizes, strict=True)]
    flags = ["-O1", "-g", "-std=c++17", "-fPIC", "-shared", "-fsanitize=address", f"-I{EMULATION}"]
    target = folder / (f"{name}." + ".".join(map(str, sizes)) + ".so")
    command = [compiler, *flags, *defines, f'-DKERNEL_SOURCE="{kernel}"', "-o", str(target)]
    subprocess.run([*command, str(EMULATION / "stand_in_driver.cc")], check=True)


def _run(compiler: str, folder: Path) -> tuple[dict[str, int], str]:
    """Exit code of each library's run, by its name, and all that they printed."""
    asked = [compiler, "-print-file-name=libasan.so"]
    sanitizer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # Fibers have stacks of their own; Python frees nothing at its end.
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    environment = dict(os.environ, LD_PRELOAD=sanitizer, ASAN_OPTIONS=options)
    command = [sys.executable, "-m", "tests.gpu_worker.kernels_cuda.emulation.run", str(folder)]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    told = subprocess.run(command, cwd=ROOT, env=environment, stdout=pipe, stderr=both, text=True, check=True).stdout
    ends = [line.split() for line in told.splitlines() if line.startswith("end ")]
    return {name: int(code) for _, name, code in ends}, told


if __name__ == "__main__":
    sys.exit(main())
