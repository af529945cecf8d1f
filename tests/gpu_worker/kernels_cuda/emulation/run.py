"""The launcher and the CUDA C++ kernel on the CPU: ``python -m … run FOLDER`` forks for each library there.

A library is the stand-in driver built for one shape, ``NAME.HEAD_DIM.GROUP.NUM_KV_HEADS.BLOCK_SIZE.so``, with
AddressSanitizer: a read or write outside of a tensor ends its process. Pages that no row owns are NaN. Prints ``end
NAME CODE`` for each, where 1 says that a result differs from the float64 reference.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gpu_worker.kernels.cuda.build import cubin_for
from gpu_worker.kernels.cuda.decode import CudaDecode
from gpu_worker.kernels.cuda.driver import Driver, DriverError, Kernel, Module
from gpu_worker.kernels.triton.attention import paged_attention_reference
from gpu_worker.kernels.triton.shapes import AttentionShape
from tests.gpu_worker.kernels_triton.interpreter.pages import Heads, poisoned_kv, relative_error

TOLERANCE = 6e-3
CASES: list[tuple[tuple[int, ...], int | None, int]] = [
    ((1, 17, 40, 63, 130, 0), None, 4),
    ((200, 64, 0, 5), None, 1),
    ((90, 12, 1, 0, 150), 37, 2),
    ((300,), 70, 8),
]


class NoCompiler:
    """Gives what the stand-in driver takes for machine code."""

    version = "none"

    def compile(self, source: str, name: str, architecture: int, defines: Sequence[str]) -> bytes:
        return b"\x7fELF"


def main(folder: Path) -> int:
    """Exit code."""
    for library in sorted(folder.glob("*.so")):
        name, *sizes, _ = library.name.split(".")
        print(f"begin {name}", flush=True)
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = check(str(library), [int(size) for size in sizes])
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(f"end {name} {os.waitstatus_to_exitcode(status)}", flush=True)
    return 0


def check(library: str, sizes: list[int]) -> int:
    """1 when a result is wrong, else 0."""
    head_dim, group, num_kv_heads, block_size = sizes
    torch.manual_seed(3)
    driver = Driver(library)
    _check_driver_errors(driver)
    heads = Heads(group, num_kv_heads, head_dim, block_size)
    shape = AttentionShape(group * num_kv_heads, num_kv_heads, head_dim, block_size)
    with tempfile.TemporaryDirectory() as folder:
        decode = CudaDecode(shape, driver, cubin_for(shape, 90, Path(folder), NoCompiler, Path(folder)))
    for kv_lens, window, splits in CASES:
        error = _error(decode, heads, shape, kv_lens, window, splits)
        print(f"lengths {kv_lens} window {window} splits {splits}: relative error {error:.1e}", flush=True)
        # NaN is no small error either.
        if not error < TOLERANCE:
            return 1
    return 0


def _error(
    decode: CudaDecode, heads: Heads, shape: AttentionShape, kv_lens: tuple[int, ...], window: int | None, splits: int
) -> float:
    kv = poisoned_kv(heads, kv_lens, torch.bfloat16, by_row_id=0 in kv_lens)
    num_rows = len(kv_lens)
    q = torch.randn(num_rows, shape.num_heads + 1, shape.head_dim).to(torch.bfloat16)[:, :-1]
    part = torch.full((num_rows, shape.num_heads, splits, shape.head_dim), float("nan"))
    lse = torch.full((num_rows, shape.num_heads, splits), float("nan"))
    out = torch.full((num_rows, shape.num_heads, shape.head_dim), float("nan"), dtype=torch.bfloat16)
    scale = shape.head_dim**-0.5
    decode(q, kv, part, lse, softmax_scale=scale, window=window, out=out)
    # A row of length 0 has no token: the reference leaves zeros there, as the kernel has to.
    counts = [min(1, kv_len) for kv_len in kv_lens]
    live = [row for row, count in enumerate(counts) if count]
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    wanted = torch.zeros(out.shape)
    wanted[live] = paged_attention_reference(q[live], kv, cu_q, softmax_scale=scale, window=window)
    return relative_error(out, wanted)


def _check_driver_errors(driver: Driver) -> None:
    """What the driver refuses comes out as an error with its number, not as a silent nothing."""
    elf = b"\x7fELF"
    for number, failing in (
        ("200", lambda: Module(driver, b"no machine code")),
        ("500", lambda: Kernel(Module(driver, elf), "unknown", ())),
        ("error 1", lambda: Kernel(Module(driver, elf), "reduce_splits", ()).launch((0, 1, 1), 32, 0, ())),
    ):
        with pytest.raises(DriverError, match=number):
            failing()
    with pytest.raises(TypeError, match="takes 1 arguments"):
        Kernel(Module(driver, elf), "reduce_splits", ("int",)).launch((1, 1, 1), 32, 0, ())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
