# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""Log-probabilities of the raw logits for rows that ask: normaliser and the most likely alternatives, best first."""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.columns import NUM_LOGPROBS


@triton.jit
def logprobs_kernel(
    logits_ptr,
    rows_ptr,
    integers_ptr,
    lse_ptr,
    top_ids_ptr,
    top_logprobs_ptr,
    VOCAB: tl.constexpr,
    INTEGERS: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (num_rows,). A row that does not ask costs one load, so that it never waits for a neighbour that does.

    lse ``[num_rows]``; top_ids int32 and top_logprobs float32 ``[num_rows, MOST]``, of which the row's own number is
    written. Each alternative is one pass over the row: the largest logit after the one before it.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row < 0:
        return
    wanted = tl.load(integers_ptr + row * INTEGERS + NUM_LOGPROBS)
    if wanted < 0:
        return
    source = logits_ptr + place * VOCAB
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(source + token, mask=token < VOCAB, other=float("-inf")))
    row_max = tl.max(highest, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(source + token, mask=token < VOCAB, other=float("-inf")) - row_max)
    lse = row_max + tl.log(tl.sum(total, 0))
    tl.store(lse_ptr + place, lse)
    last = float("inf")
    last_token = -1
    for index in tl.range(0, tl.minimum(wanted, MOST)):
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        best_token = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
        for start in tl.range(0, VOCAB, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(source + token, mask=token < VOCAB, other=float("-inf"))
            is_later = (token < VOCAB) & ((x < last) | ((x == last) & (token > last_token)))
            is_better = is_later & ((x > best) | (best_token == 0x7FFFFFFF))
            best = tl.where(is_better, x, best)
            best_token = tl.where(is_better, token, best_token)
        last = tl.max(best, 0)
        last_token = tl.min(tl.where(best == last, best_token, 0x7FFFFFFF), 0)
        tl.store(top_ids_ptr + place * MOST + index, last_token)
        tl.store(top_logprobs_ptr + place * MOST + index, last - lse)
