# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""A plan on the device: words of one upload go to their places, and a step's inputs are gathered from row state."""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.columns import NUM_KNOWN, PROMPT_LEN


@triton.jit
def apply_plan_kernel(upload_ptr, arena_ptr, BLOCK: tl.constexpr):
    """Grid (num_runs, cdiv(longest, BLOCK)). The upload begins with (target, source, length) of each run, in words."""
    run = tl.program_id(0) * 3
    target = tl.load(upload_ptr + run)
    source = tl.load(upload_ptr + run + 1)
    length = tl.load(upload_ptr + run + 2)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_word = word < length
    tl.store(arena_ptr + target + word, tl.load(upload_ptr + source + word, mask=is_word), mask=is_word)


@triton.jit
def gather_step_kernel(
    rows_ptr,
    cu_q_ptr,
    ends_ptr,
    integers_ptr,
    tokens_ptr,
    tables_ptr,
    token_ids_ptr,
    positions_ptr,
    blocks_ptr,
    offsets_ptr,
    kv_lens_ptr,
    INTEGERS: tl.constexpr,
    TOKENS: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (num_rows, cdiv(longest, BLOCK)). Row i computes tokens ``[cu_q[i], cu_q[i + 1])`` of the step.

    They end at position ``ends[i]`` of the row, or at what the row knows where that is 0: a decode continues from the
    token that the device sampled last, which the host need not have seen. A padding row (negative) gets one token of
    id 0 that belongs to no block, and length 0.
    """
    entry = tl.program_id(0)
    row = tl.load(rows_ptr + entry).to(tl.int64)
    first = tl.load(cu_q_ptr + entry)
    count = tl.load(cu_q_ptr + entry + 1) - first
    within = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_ours = within < count
    is_live = is_ours & (row >= 0)
    end = tl.load(ends_ptr + entry)
    if row >= 0:
        if end == 0:
            end = tl.load(integers_ptr + row * INTEGERS + NUM_KNOWN)
    position = tl.where(is_live, end - count + within, 0)
    token = tl.load(tokens_ptr + row * TOKENS + position, mask=is_live, other=0)
    block = tl.load(tables_ptr + row * TABLE + position // BLOCK_SIZE, mask=is_live, other=-1)
    tl.store(token_ids_ptr + first + within, token, mask=is_ours)
    tl.store(positions_ptr + first + within, position.to(tl.int64), mask=is_ours)
    tl.store(blocks_ptr + first + within, block.to(tl.int64), mask=is_ours)
    tl.store(offsets_ptr + first + within, (position % BLOCK_SIZE).to(tl.int64), mask=is_ours)
    if tl.program_id(1) == 0:
        tl.store(kv_lens_ptr + entry, tl.where(row < 0, 0, end))


@triton.jit
def clear_counts_kernel(rows_ptr, counts_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (num_rows, cdiv(VOCAB, BLOCK)): no token of the rows is counted."""
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(counts_ptr + row * VOCAB + token, tl.zeros([BLOCK], tl.int32), mask=token < VOCAB)


@triton.jit
def count_tokens_kernel(
    rows_ptr,
    integers_ptr,
    tokens_ptr,
    counts_ptr,
    INTEGERS: tl.constexpr,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (num_rows, cdiv(longest, BLOCK)): marks prompt tokens by the sign bit, counts those of the output."""
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = tl.load(integers_ptr + row * INTEGERS + NUM_KNOWN)
    prompt_len = tl.load(integers_ptr + row * INTEGERS + PROMPT_LEN)
    token = tl.load(tokens_ptr + row * TOKENS + place, mask=place < known, other=0)
    counted = counts_ptr + row * VOCAB + token
    tl.atomic_or(counted, -0x80000000, mask=place < prompt_len)
    tl.atomic_add(counted, 1, mask=(place >= prompt_len) & (place < known))
