"""RMSNorm, alone or fused with the addition to the residual stream."""

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.elementwise import add_rmsnorm_kernel
from gpu_worker.kernels.triton.shapes import QUERY_DTYPES, next_power_of_2

LARGEST_NORM = 1 << 15
"""One program holds a row in registers."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension; `x` [..., N] contiguous, bf16 or fp16, `weight` [N].

    Returns a new tensor of the same shape. Raises KernelArgumentError.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)
    _launch(rows, None, weight, out, eps)
    return out.view(x.shape)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `x` to `residual` in place, both [T, N] contiguous, and returns the norm of the rounded sum.

    Raises KernelArgumentError.
    """
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, eps)
    return out


def num_warps_for(size: int) -> int:
    """Threads for a row of `size`: 16 elements each where there are enough."""
    return max(1, min(16, next_power_of_2(size) // 512))


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, eps: float
) -> None:
    check_tensor("x", x, (None, None), QUERY_DTYPES, x.device)
    num_rows, size = x.shape
    check_that(0 < size <= LARGEST_NORM, f"x has rows of {size}, the kernel does 1 to {LARGEST_NORM}")
    check_tensor("weight", weight, (size,), (x.dtype,), x.device)
    if residual is not None:
        check_tensor("residual", residual, (num_rows, size), (x.dtype,), x.device)
    if num_rows == 0:
        return
    add_rmsnorm_kernel[(num_rows,)](
        x,
        residual,
        weight,
        out,
        eps,
        SIZE=size,
        SIZE_PAD=next_power_of_2(size),
        HAS_RESIDUAL=residual is not None,
        num_warps=num_warps_for(size),
    )


def add_rms_norm_reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in plain torch: rounds the sum, the normed row and the product to the model's dtype."""
    residual += x
    return rms_norm_reference(residual, weight, eps)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in plain torch."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
