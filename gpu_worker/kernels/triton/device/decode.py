# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""Split-KV decode attention: one token a row, its positions divided among SPLITS programs, then a reduction.

Flash-decoding (Dao, Haziza, Massa and Sizov, 2023): each split keeps its own softmax; the reduction weighs the
splits by 2^lse. The number of splits is fixed a launch, so that a CUDA graph can hold it; how many of them a row uses
follows from its length, read on the device.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.tiles import attend_tile, load_tile


@triton.jit
def split_size(kv_len, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Positions that each split of a row takes: whole tiles, so that only a row's last tile is masked."""
    return tl.cdiv(tl.cdiv(kv_len, SPLITS), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["window"])
def paged_decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    kv_lens_ptr,
    rows_ptr,
    part_ptr,
    lse_ptr,
    out_ptr,
    k_scale_ptr,
    v_scale_ptr,
    softmax_scale,
    window,
    q_stride,
    out_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Grid (num_rows, NUM_KV_HEADS, SPLITS). q ``[rows, heads, HEAD_DIM]``; a row of length 0 gives zeros.

    The block table of row i is row i of `tables`, or row ``rows[i]`` with HAS_ROWS (any number where the length is 0).

    With SPLITS > 1 writes ``part [rows, heads, SPLITS, HEAD_DIM]`` and ``lse [rows, heads, SPLITS]`` (base 2) of the
    splits that hold positions; with one split writes `out` itself.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    kv_len = tl.load(kv_lens_ptr + row)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(kv_len - window, 0) // BLOCK_N * BLOCK_N
    size = split_size(kv_len - begin, SPLITS, BLOCK_N)
    begin = begin + split * size
    if SPLITS > 1:
        if begin >= kv_len:
            return
    end = tl.minimum(begin + size, kv_len)
    member = tl.arange(0, GROUP_PAD)
    is_member = member < GROUP
    dim = tl.arange(0, DIM_PAD)
    is_dim = dim < HEAD_DIM
    head = kv_head * GROUP + member
    q = load_tile(
        q_ptr + row.to(tl.int64) * q_stride + head[:, None] * HEAD_DIM + dim[None, :],
        is_member[:, None],
        is_dim[None, :],
        GROUP != GROUP_PAD,
        HEAD_DIM != DIM_PAD,
    )
    scale = softmax_scale * 1.4426950408889634
    if SCALED:
        scale = scale * tl.load(k_scale_ptr + kv_head)
    table_row = row.to(tl.int64)
    if HAS_ROWS:
        table_row = tl.load(rows_ptr + row).to(tl.int64)
    table_ptr = tables_ptr + table_row * table_stride
    own = tl.full([GROUP_PAD, 1], 0, tl.int32) + (kv_len - 1)
    m = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    plain_end = begin
    if not HAS_WINDOW:
        plain_end = begin + (end - begin) // BLOCK_N * BLOCK_N
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
    safe = tl.where(total == 0.0, 1.0, total)
    inverse = 1.0 / safe
    if SCALED:
        inverse = inverse * tl.load(v_scale_ptr + kv_head)
    result = acc * inverse[:, None]
    is_stored = is_member[:, None] & is_dim[None, :]
    if SPLITS == 1:
        target = out_ptr + row.to(tl.int64) * out_stride + head[:, None] * HEAD_DIM + dim[None, :]
        tl.store(target, result.to(out_ptr.dtype.element_ty), mask=is_stored)
    else:
        part = (row.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * SPLITS + split
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dim[None, :], result, mask=is_stored)
        tl.store(lse_ptr + part, m + tl.log2(safe), mask=is_member)


@triton.jit(do_not_specialize=["window"])
def reduce_splits_kernel(
    part_ptr,
    lse_ptr,
    kv_lens_ptr,
    out_ptr,
    window,
    out_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Grid (num_rows, NUM_HEADS). Joins the splits that hold positions of the row; the others were never written."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_len = tl.load(kv_lens_ptr + row)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(kv_len - window, 0) // BLOCK_N * BLOCK_N
    size = split_size(kv_len - begin, SPLITS, BLOCK_N)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM_PAD)
    is_used = begin + split * size < kv_len
    part = (row.to(tl.int64) * NUM_HEADS + head) * SPLITS + split
    lse = tl.load(lse_ptr + part, mask=is_used, other=float("-inf"))
    highest = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weight, 0)
    weight = weight / tl.where(total == 0.0, 1.0, total)
    value = tl.load(
        part_ptr + part[:, None] * HEAD_DIM + dim[None, :],
        mask=is_used[:, None] & (dim < HEAD_DIM)[None, :],
        other=0.0,
    )
    joined = tl.sum(value * weight[:, None], 0)
    target = out_ptr + row.to(tl.int64) * out_stride + head * HEAD_DIM + dim
    tl.store(target, joined.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)
