# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""Add + RMSNorm (Zhang and Sennrich, 2019) and SiLU·mul (SwiGLU: Shazeer, 2020), rounded as the reference rounds."""

import triton
import triton.language as tl


@triton.jit
def add_rmsnorm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Grid (num_rows,). Rows of SIZE, contiguous; adds x to the residual in place and norms the rounded sum."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    lane = tl.arange(0, SIZE_PAD)
    is_lane = lane < SIZE
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row + lane, mask=is_lane, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x = x + tl.load(residual_ptr + row + lane, mask=is_lane, other=0.0).to(tl.float32)
        rounded = x.to(dtype)
        tl.store(residual_ptr + row + lane, rounded, mask=is_lane)
        x = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + lane, mask=is_lane, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + lane, ((x * inverse).to(dtype).to(tl.float32) * weight).to(dtype), mask=is_lane)


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (num_rows, cdiv(SIZE, BLOCK)). gate_up ``[rows, 2 SIZE]``: gates, then ups; out ``[rows, SIZE]``."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_lane = lane < SIZE
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    gate = tl.load(gate_up_ptr + row * (2 * SIZE) + lane, mask=is_lane, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * (2 * SIZE) + SIZE + lane, mask=is_lane, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * SIZE + lane, (silu * up).to(dtype), mask=is_lane)
