# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""``y = x W^T + b`` with W in 8 bits: weights are read as bytes and widened on the way to the tensor cores.

The scale of an output channel multiplies its sum once, at the end (Dettmers et al., LLM.int8(), 2022, weights only).
Codes are whole numbers below 128, which bf16 and fp16 hold exactly, so that all rounding is that of the codes.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def int8_linear_kernel(
    x_ptr,
    codes_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    x_stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Grid (cdiv(num_rows, BLOCK_M), cdiv(OUTPUTS, BLOCK_N)): programs that share weights run beside each other.

    x ``[num_rows, INPUTS]`` with a stride a row, codes int8 ``[OUTPUTS, INPUTS]``, scale float32 ``[OUTPUTS]``, bias in
    x's dtype; out ``[num_rows, OUTPUTS]`` contiguous. Sums are float32.
    """
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = row < num_rows
    is_column = column < OUTPUTS
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, INPUTS, BLOCK_K):
        lane = start + tl.arange(0, BLOCK_K)
        is_lane = lane < INPUTS
        x = tl.load(x_ptr + row[:, None] * x_stride + lane[None, :], mask=is_row[:, None] & is_lane[None, :], other=0.0)
        codes = tl.load(
            codes_ptr + column[None, :] * INPUTS + lane[:, None], mask=is_column[None, :] & is_lane[:, None], other=0
        )
        acc = tl.dot(x, codes.to(tl.float32).to(x.dtype), acc)
    acc = acc * tl.load(scale_ptr + column, mask=is_column, other=0.0)[None, :]
    if HAS_BIAS:
        acc = acc + tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out_ptr + row[:, None] * OUTPUTS + column[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_column[None, :],
    )
