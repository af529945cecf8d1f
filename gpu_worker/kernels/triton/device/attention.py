# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""Unified paged attention: prefill, chunks and decode rows of one step in one launch.

Query heads that share a KV head are packed in the rows of one tile, so that each key is read once for all of them
(GQA packing). A step's tokens lie flat; each program finds its row by bisection in `cu_q`, so that the host sends no
map of tiles and the grid is a function of counts it knows. The scheme is that of vLLM's unified Triton attention
(vllm/v1/attention, read, not copied).
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.tiles import attend_tile, load_tile


@triton.jit
def find_row(cu_q_ptr, base, tile, num_rows, BLOCK_Q: tl.constexpr):
    """Last row whose first tile is at or before `tile`; row i's is ``(cu_q[i] - base) // BLOCK_Q + i``."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        is_before = (tl.load(cu_q_ptr + middle) - base) // BLOCK_Q + middle <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    return low


@triton.jit(do_not_specialize=["num_rows", "window"])
def paged_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    tables_ptr,
    cu_q_ptr,
    kv_lens_ptr,
    rows_ptr,
    k_scale_ptr,
    v_scale_ptr,
    softmax_scale,
    num_rows,
    window,
    q_stride,
    out_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Grid (num_tokens // BLOCK_Q + num_rows, NUM_KV_HEADS), BLOCK_Q = BLOCK_M // GROUP tokens a tile.

    q, out ``[tokens, heads, HEAD_DIM]`` with a stride a token, 16-byte aligned; row i has tokens ``[cu_q[i],
    cu_q[i + 1])``, the last of its ``kv_lens[i]`` positions. Its block table is row i of `tables`, or row
    ``rows[i]`` with HAS_ROWS. Tokens outside every row are left alone.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The last tiles of a row see the most positions: they start first, so that the launch ends evenly.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    base = tl.load(cu_q_ptr)
    row = find_row(cu_q_ptr, base, tile, num_rows, BLOCK_Q)
    first_token = tl.load(cu_q_ptr + row)
    num_queries = tl.load(cu_q_ptr + row + 1) - first_token
    first_query = (tile - ((first_token - base) // BLOCK_Q + row)) * BLOCK_Q
    if first_query >= num_queries:
        return
    kv_len = tl.load(kv_lens_ptr + row)
    context = kv_len - num_queries
    packed = tl.arange(0, BLOCK_M)
    query = first_query + packed // GROUP
    is_query = (query < num_queries) & (packed < BLOCK_Q * GROUP)
    head = kv_head * GROUP + packed % GROUP
    dim = tl.arange(0, DIM_PAD)
    is_dim = dim < HEAD_DIM
    token = (first_token + query).to(tl.int64)
    q = load_tile(
        q_ptr + token[:, None] * q_stride + head[:, None] * HEAD_DIM + dim[None, :],
        is_query[:, None],
        is_dim[None, :],
        True,
        HEAD_DIM != DIM_PAD,
    )
    scale = softmax_scale * 1.4426950408889634
    if SCALED:
        scale = scale * tl.load(k_scale_ptr + kv_head)
    own = (context + query)[:, None]
    table_row = row.to(tl.int64)
    if HAS_ROWS:
        table_row = tl.load(rows_ptr + row).to(tl.int64)
    table_ptr = tables_ptr + table_row * table_stride
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    # [begin, plain_end): every query of the tile sees every position. [plain_end, end): the diagonal and the tail.
    end = tl.minimum(context + first_query + BLOCK_Q, kv_len)
    begin = 0
    plain_end = (context + first_query + 1) // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        begin = tl.maximum(context + first_query - window + 1, 0) // BLOCK_N * BLOCK_N
        plain_end = begin
    for start in tl.range(begin, plain_end, BLOCK_N):
        acc, m, total = attend_tile(
            acc, m, total, q, k_ptr, v_ptr, table_ptr, kv_head, start, end, own, window, scale,
            NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, DIM_PAD, BLOCK_N, False, False,
        )  # fmt: skip
    for start in tl.range(plain_end, end, BLOCK_N):
        acc, m, total = attend_tile(
            acc, m, total, q, k_ptr, v_ptr, table_ptr, kv_head, start, end, own, window, scale,
            NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, DIM_PAD, BLOCK_N, True, HAS_WINDOW,
        )  # fmt: skip
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    if SCALED:
        inverse = inverse * tl.load(v_scale_ptr + kv_head)
    tl.store(
        out_ptr + token[:, None] * out_stride + head[:, None] * HEAD_DIM + dim[None, :],
        (acc * inverse[:, None]).to(out_ptr.dtype.element_ty),
        mask=is_query[:, None] & is_dim[None, :],
    )
