"""SiLU of the gates times the ups."""

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.elementwise import silu_mul_kernel
from gpu_worker.kernels.triton.shapes import QUERY_DTYPES, next_power_of_2

_LARGEST_BLOCK = 1024


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 I], gates then ups, contiguous, bf16 or fp16, to [T, I]. Raises KernelArgumentError."""
    check_tensor("gate_up", gate_up, (None, None), QUERY_DTYPES, gate_up.device)
    check_that(gate_up.shape[1] % 2 == 0, f"gate_up has {gate_up.shape[1]} columns, wanted an even number")
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    block = min(_LARGEST_BLOCK, next_power_of_2(size))
    silu_mul_kernel[(num_rows, -(-size // block))](gate_up, out, SIZE=size, BLOCK=block, num_warps=4)
    return out


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The same in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
