# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""RoPE on queries and keys, optional norm of each head before it, and the write of keys and values to their pages.

Rotary embedding in GPT-NeoX order (Su et al., 2021): dimension i turns with i + HEAD_DIM / 2. One program does the
query heads of one KV head of one token, its key and its value, so that a decode step of few rows still fills many
multiprocessors. Rounding follows the reference: a normed head is rounded to the model's dtype before it is turned.
"""

import triton
import triton.language as tl


@triton.jit
def normed_halves(first, second, weight_ptr, lane, is_lane, eps, HEAD_DIM: tl.constexpr, dtype: tl.constexpr):
    """RMS norm of heads given as two halves [heads, HALF_PAD] in float32, rounded to `dtype` twice."""
    half: tl.constexpr = HEAD_DIM // 2
    square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    inverse = tl.rsqrt(square / HEAD_DIM + eps)[:, None]
    w_first = tl.load(weight_ptr + lane, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    w_second = tl.load(weight_ptr + half + lane, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    first = (first * inverse).to(dtype).to(tl.float32) * w_first
    second = (second * inverse).to(dtype).to(tl.float32) * w_second
    return first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)


@triton.jit
def scaled_to_fp8(value, inverse):
    """value * inverse, held to what e4m3 can express: an outlier becomes the largest number, never NaN."""
    return tl.clamp(value.to(tl.float32) * inverse, -448.0, 448.0)


@triton.jit
def rope_kv_write_kernel(
    qkv_ptr,
    cos_sin_ptr,
    blocks_ptr,
    offsets_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_out_ptr,
    k_pages_ptr,
    v_pages_ptr,
    k_scale_ptr,
    v_scale_ptr,
    eps,
    qkv_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Grid (num_tokens, NUM_KV_HEADS). A token whose block is negative is padding: nothing of it is stored in pages.

    qkv ``[tokens, (NUM_HEADS + 2 NUM_KV_HEADS) HEAD_DIM]``: query heads, key heads, value heads. cos_sin ``[tokens,
    HEAD_DIM]`` float32: cosines, then sines. q_out ``[tokens, NUM_HEADS, HEAD_DIM]``. Pages as in `device.tiles`.
    """
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    half: tl.constexpr = HEAD_DIM // 2
    dtype: tl.constexpr = q_out_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    lane = tl.arange(0, HALF_PAD)
    is_lane = lane < half
    cos = tl.load(cos_sin_ptr + token * HEAD_DIM + lane, mask=is_lane, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + token * HEAD_DIM + half + lane, mask=is_lane, other=0.0)[None, :]
    row_ptr = qkv_ptr + token * qkv_stride

    member = tl.arange(0, GROUP_PAD)[:, None]
    is_query = (member < GROUP) & is_lane[None, :]
    q_place = (kv_head * GROUP + member) * HEAD_DIM + lane[None, :]
    q_first = tl.load(row_ptr + q_place, mask=is_query, other=0.0).to(tl.float32)
    q_second = tl.load(row_ptr + q_place + half, mask=is_query, other=0.0).to(tl.float32)
    if HAS_NORM:
        q_first, q_second = normed_halves(q_first, q_second, q_norm_ptr, lane, is_lane, eps, HEAD_DIM, dtype)
    q_target = q_out_ptr + token * (NUM_HEADS * HEAD_DIM) + q_place
    tl.store(q_target, (q_first * cos - q_second * sin).to(dtype), mask=is_query)
    tl.store(q_target + half, (q_second * cos + q_first * sin).to(dtype), mask=is_query)

    block = tl.load(blocks_ptr + token).to(tl.int64)
    if block < 0:
        return
    offset = tl.load(offsets_ptr + token).to(tl.int64)
    is_key = is_lane[None, :]
    k_place = (NUM_HEADS + kv_head) * HEAD_DIM + lane[None, :]
    k_first = tl.load(row_ptr + k_place, mask=is_key, other=0.0).to(tl.float32)
    k_second = tl.load(row_ptr + k_place + half, mask=is_key, other=0.0).to(tl.float32)
    if HAS_NORM:
        k_first, k_second = normed_halves(k_first, k_second, k_norm_ptr, lane, is_lane, eps, HEAD_DIM, dtype)
    v_first = tl.load(row_ptr + k_place + NUM_KV_HEADS * HEAD_DIM, mask=is_key, other=0.0)
    v_second = tl.load(row_ptr + k_place + NUM_KV_HEADS * HEAD_DIM + half, mask=is_key, other=0.0)
    turned_first = (k_first * cos - k_second * sin).to(dtype)
    turned_second = (k_second * cos + k_first * sin).to(dtype)
    if SCALED:
        k_inverse = 1.0 / tl.load(k_scale_ptr + kv_head)
        v_inverse = 1.0 / tl.load(v_scale_ptr + kv_head)
        turned_first = scaled_to_fp8(turned_first, k_inverse)
        turned_second = scaled_to_fp8(turned_second, k_inverse)
        v_first = scaled_to_fp8(v_first, v_inverse)
        v_second = scaled_to_fp8(v_second, v_inverse)
    slot = ((block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + offset) * HEAD_DIM + lane[None, :]
    page_dtype: tl.constexpr = k_pages_ptr.dtype.element_ty
    tl.store(k_pages_ptr + slot, turned_first.to(page_dtype), mask=is_key)
    tl.store(k_pages_ptr + slot + half, turned_second.to(page_dtype), mask=is_key)
    tl.store(v_pages_ptr + slot, v_first.to(page_dtype), mask=is_key)
    tl.store(v_pages_ptr + slot + half, v_second.to(page_dtype), mask=is_key)
