"""Attention with the CUDA C++ kernel for decode rows and Triton's unified kernel for everything else."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.cuda.build import cubin_for
from gpu_worker.kernels.cuda.cubin_cache import cache_folder
from gpu_worker.kernels.cuda.decode import CudaDecode
from gpu_worker.kernels.cuda.driver import Driver
from gpu_worker.kernels.triton.backend import TritonAttention, TritonAttentionStep
from gpu_worker.kernels.triton.decode import SplitWorkspace
from gpu_worker.kernels.triton.shapes import AttentionShape
from gpu_worker.model.attention import AttentionLayout


def load_decode(shape: AttentionShape, device: torch.device) -> CudaDecode:
    """The kernel for a shape on a device. Raises KernelArgumentError, CompilerError, DriverError, OSError."""
    major, minor = torch.cuda.get_device_capability(device)
    cubin = cubin_for(shape, 10 * major + minor, cache_folder())
    # torch's context must exist before a module is loaded into it.
    torch.cuda.synchronize(device)
    return CudaDecode(shape, Driver(), cubin)


class CudaAttention:
    """An `AttentionBackend` that is opt-in: no device's timing has shown it ahead of Triton yet."""

    name = "cuda"

    def __init__(self, shape: AttentionShape, device: torch.device, decode: CudaDecode) -> None:
        self._triton = TritonAttention(shape, device)
        self._decode = decode
        self._shape = shape

    def prepare(self, layout: AttentionLayout) -> "CudaAttentionStep":
        """As `AttentionBackend.prepare`."""
        step = self._triton.prepare(layout)
        workspace = step.workspace
        if workspace is not None and workspace.splits == 1:
            # This kernel always writes its parts: room for them is needed with one split too.
            rows, device = step.layout.num_decodes, step.layout.block_tables.device
            part = torch.empty((rows, self._shape.num_heads, 1, self._shape.head_dim), device=device)
            workspace = SplitWorkspace(1, part, torch.empty((rows, self._shape.num_heads, 1), device=device))
        return CudaAttentionStep(step, workspace, self._decode)


@dataclass(frozen=True, slots=True)
class CudaAttentionStep:
    """Attention of one step."""

    triton: TritonAttentionStep
    workspace: SplitWorkspace | None
    decode: CudaDecode

    def attend(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None) -> torch.Tensor:
        """As `PreparedAttention.attend`."""
        if self.workspace is None:
            return self.triton.attend(q, k_pages, v_pages, window)
        out = torch.empty_like(q)
        count = self.triton.layout.num_decodes
        self.decode(
            q[:count],
            self.triton.rows(k_pages, v_pages, 0, count),
            self.workspace.part,
            self.workspace.lse,
            softmax_scale=self.triton.shape.head_dim**-0.5,
            window=window,
            out=out[:count],
        )
        self.triton.attend_from(count, q, k_pages, v_pages, window, out)
        return out.view(q.shape[0], -1)
