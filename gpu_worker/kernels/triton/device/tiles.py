# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""One step of attention over a tile of the paged cache, shared by the unified and the split kernel.

Online softmax in base 2 (Milakov and Gimelshein, 2018; Dao, 2022): a running maximum `m`, the sum `total` of
2^(score - m) and the unnormalised output `acc`. Keys and values are found page by page through the block table (Kwon
et al., 2023).

Layout: pages ``[num_pages, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM]``, contiguous, 16-byte aligned; DIM_PAD is HEAD_DIM
rounded up to a power of two, the lanes above it are masked. Both kernels must keep two things right that only show
with poisoned pages: no position at or above `end` may be read when MASKED, and no masked score may reach the sum.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(pointers, is_row, is_dim, MASK_ROWS: tl.constexpr, MASK_DIMS: tl.constexpr):
    """A tile of pages or queries with only the masks that it needs; what is masked reads as zero."""
    if MASK_ROWS:
        if MASK_DIMS:
            tile = tl.load(pointers, mask=is_row & is_dim, other=0.0)
        else:
            tile = tl.load(pointers, mask=is_row, other=0.0)
    elif MASK_DIMS:
        tile = tl.load(pointers, mask=is_dim, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def attend_tile(
    acc,
    m,
    total,
    q,
    k_ptr,
    v_ptr,
    table_ptr,
    kv_head,
    start,
    end,
    own,
    window,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Adds positions ``[start, start + BLOCK_N)`` of one row and KV head to the running softmax.

    `own` [BLOCK_M, 1] is the position of each query. With MASKED, positions at or above `end` are not read and a
    query sees positions up to its own; with HAS_WINDOW only the last `window` of them. Scores are multiplied by
    `scale`, which holds log2(e).
    """
    dim = tl.arange(0, DIM_PAD)
    is_dim = dim < HEAD_DIM
    position = start + tl.arange(0, BLOCK_N)
    is_held = position < end
    if MASKED:
        page = tl.load(table_ptr + position // BLOCK_SIZE, mask=is_held, other=0).to(tl.int64)
    else:
        page = tl.load(table_ptr + position // BLOCK_SIZE).to(tl.int64)
    slot = (page * NUM_KV_HEADS + kv_head) * (BLOCK_SIZE * HEAD_DIM) + (position % BLOCK_SIZE) * HEAD_DIM
    k = load_tile(
        k_ptr + slot[None, :] + dim[:, None], is_held[None, :], is_dim[:, None], MASKED, HEAD_DIM != DIM_PAD
    ).to(q.dtype)
    score = tl.dot(q, k, out_dtype=tl.float32) * scale
    if MASKED:
        # No query sees past its own position, which is below `end`.
        is_seen = position[None, :] <= own
        if HAS_WINDOW:
            is_seen = is_seen & (position[None, :] > own - window)
        score = tl.where(is_seen, score, float("-inf"))
    m_new = tl.maximum(m, tl.max(score, 1))
    if MASKED:
        # A query that sees nothing of this tile, and saw nothing before, must not compute inf - inf.
        m_base = tl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        m_base = m_new
    alpha = tl.exp2(m - m_base)
    weight = tl.exp2(score - m_base[:, None])
    total_new = total * alpha + tl.sum(weight, 1)
    v = load_tile(
        v_ptr + slot[:, None] + dim[None, :], is_held[:, None], is_dim[None, :], MASKED, HEAD_DIM != DIM_PAD
    ).to(q.dtype)
    acc_new = acc * alpha[:, None] + tl.dot(weight.to(q.dtype), v, out_dtype=tl.float32)
    return acc_new, m_new, total_new
