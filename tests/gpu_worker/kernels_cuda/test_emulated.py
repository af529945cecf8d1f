"""Launcher and kernel on the CPU: a fiber a thread, AddressSanitizer around tensors, NaN where no row owns a slot."""

import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(660)

Run = Callable[..., subprocess.CompletedProcess[str]]

SHAPES = [(64, 3, 2, 16), (128, 4, 1, 32), (256, 8, 1, 16), (128, 1, 2, 16)]

PLANTED = {
    "one position too many": ("GROUPS + place < end;", "GROUPS + place <= end;"),
    "page of another KV head": ("* NUM_KV_HEADS + kv_head) * BLOCK_SIZE", "* NUM_KV_HEADS) * BLOCK_SIZE"),
    "accumulator not rescaled": ("acc[g][i] * alpha + weight", "acc[g][i] + weight"),
    "lengths of splits disagree": ("const int used = size > 0", "const int used = splits + 0 * size > 0"),
    "out of the block table": ("table[position / BLOCK_SIZE]", "table[position]"),
    "barrier in a branch": ("g) {\n    __syncthreads();", "g) {\n    if (threadIdx.x < 64) __syncthreads();"),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "d{}-g{}-kv{}-bs{}".format(*shape))
def test_the_kernel_equals_its_reference(
    shape: tuple[int, int, int, int], run_emulated: Run, kernel_source: str
) -> None:
    done = run_emulated(shape, kernel_source)
    print(done.stdout)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("bug", list(PLANTED))
def test_planted_bugs_are_caught(bug: str, run_emulated: Run, kernel_source: str) -> None:
    old, new = PLANTED[bug]
    assert old in kernel_source
    done = run_emulated(SHAPES[0], kernel_source.replace(old, new))
    assert done.returncode != 0, f"not caught\n{done.stdout}"
