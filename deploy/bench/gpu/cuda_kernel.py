"""The CUDA C++ decode kernel on the device: against its reference, then beside Triton's, which it has to beat."""

from functools import partial
from typing import Protocol

import torch

from deploy.bench.gpu.kernels import make_kv, relative_error
from deploy.bench.gpu.machine import Ceilings, Machine
from deploy.bench.gpu.report import Report
from gpu_worker.kernels.cuda.backend import load_decode
from gpu_worker.kernels.cuda.compiler import CompilerError
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode, paged_decode_reference
from gpu_worker.kernels.triton.shapes import AttentionShape, num_splits

_TOLERANCE = 1e-2


def measure_cuda_kernel(machine: Machine, ceilings: Ceilings, report: Report) -> None:
    """A line a size; a wrong result is a failure. In a dry run Triton's kernel takes the other one's place."""
    shape = AttentionShape(4, 1, 64, 16) if machine.is_dry else AttentionShape(32, 8, 128, 16)
    try:
        decode: Decode = _by_triton if machine.is_dry else load_decode(shape, machine.device)
    except CompilerError as missing:
        report.skip("cuda", str(missing).splitlines()[0])
        return
    sizes = ((2, 40),) if machine.is_dry else ((1, 16384), (64, 2048), (64, 8192), (256, 2048))
    for num_rows, kv_len in sizes:
        _measure_size(machine, ceilings, report, shape, decode, num_rows, kv_len)


def _measure_size(
    machine: Machine,
    ceilings: Ceilings,
    report: Report,
    shape: AttentionShape,
    decode: "Decode",
    num_rows: int,
    kv_len: int,
) -> None:
    device = machine.device
    multiprocessors = 4 if machine.is_dry else torch.cuda.get_device_properties(device).multi_processor_count
    kv = make_kv(machine, shape, [kv_len] * num_rows)
    q = torch.randn(num_rows, shape.num_heads, shape.head_dim, device=device).to(torch.bfloat16)
    splits = num_splits(num_rows, shape.num_kv_heads, kv_len, multiprocessors)
    part = torch.empty(num_rows, shape.num_heads, splits, shape.head_dim, device=device)
    lse = torch.empty(num_rows, shape.num_heads, splits, device=device)
    cuda = partial(decode, q, kv, part, lse, softmax_scale=0.1)
    few = min(num_rows, 4)
    held = PagedKv(kv.k_pages, kv.v_pages, kv.block_tables[:few], kv.kv_lens[:few])
    error = relative_error(cuda()[:few], paged_decode_reference(q[:few], held, softmax_scale=0.1))
    if not error < _TOLERANCE:
        report.fail("cuda", f"rows={num_rows} context={kv_len}: relative error {error:.3g}")
        return
    workspace = SplitWorkspace.make(num_rows, shape, splits, device)
    seconds = machine.seconds(cuda)
    triton = machine.seconds(partial(paged_decode, q, kv, workspace, softmax_scale=0.1))
    num_bytes = 2 * num_rows * kv_len * shape.num_kv_heads * shape.head_dim * 2
    report.add(
        "cuda", rows=num_rows, context=kv_len, relative_error=error, us=seconds * 1e6, triton_us=triton * 1e6,
        share_of_copy=num_bytes / seconds / ceilings.copy_bytes_per_s,
    )  # fmt: skip


class Decode(Protocol):
    """Decode attention into parts that are given."""

    def __call__(
        self, q: torch.Tensor, kv: PagedKv, part: torch.Tensor, lse: torch.Tensor, *, softmax_scale: float
    ) -> torch.Tensor:
        """As `gpu_worker.kernels.cuda.decode.CudaDecode`."""
        ...


def _by_triton(
    q: torch.Tensor, kv: PagedKv, part: torch.Tensor, lse: torch.Tensor, *, softmax_scale: float
) -> torch.Tensor:
    return paged_decode(q, kv, SplitWorkspace(part.shape[2], part, lse), softmax_scale=softmax_scale)
