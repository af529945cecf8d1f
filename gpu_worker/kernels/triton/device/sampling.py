# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""From logits to tokens: bias, masks and penalties; seeded Gumbel-max; the token goes into the row's state.

Semantics are those of `gpu_worker.sampling`, which is the reference. A row's columns are found through `rows`, whose
negative entries are padding. Kernels run in the order adjust, (filters), choose, finish.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.columns import (
    ADJUSTED,
    BIAS,
    CHOICE,
    FREQUENCY,
    MIN_TOKENS,
    NEEDS,
    NEEDS_MIN_TOKENS,
    NUM_BIAS,
    NUM_ENDS,
    NUM_KNOWN,
    NUM_LOGPROBS,
    PENALTIES,
    PRESENCE,
    PROMPT_LEN,
    RANDOM,
    REPETITION,
    SEED_HIGH,
    SEED_LOW,
    TEMPERATURE,
)
from gpu_worker.kernels.triton.device.noise import gumbel, row_keys


@triton.jit
def adjust_logits_kernel(
    logits_ptr,
    adjusted_ptr,
    rows_ptr,
    integers_ptr,
    floats_ptr,
    counts_ptr,
    ends_ptr,
    bias_ids_ptr,
    bias_values_ptr,
    VOCAB: tl.constexpr,
    INTEGERS: tl.constexpr,
    FLOATS: tl.constexpr,
    ENDS: tl.constexpr,
    BIASES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (num_rows, cdiv(VOCAB, BLOCK)). Writes adjusted logits of rows that need it and leaves the others alone.

    In this order: end tokens masked while the row is shorter than its min_tokens, bias, then repetition (Keskar et
    al., 2019), frequency and presence penalties. logits and adjusted are ``[num_rows, VOCAB]`` float32.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row < 0:
        return
    integers = integers_ptr + row * INTEGERS
    needs = tl.load(integers + NEEDS)
    if (needs & ADJUSTED) == 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = token < VOCAB
    x = tl.load(logits_ptr + place * VOCAB + token, mask=is_token, other=0.0)
    if (needs & NEEDS_MIN_TOKENS) != 0:
        if tl.load(integers + NUM_KNOWN) - tl.load(integers + PROMPT_LEN) < tl.load(integers + MIN_TOKENS):
            for index in range(tl.load(integers + NUM_ENDS)):
                end = tl.load(ends_ptr + row * ENDS + index)
                x = tl.where(token == end, float("-inf"), x)
    if (needs & BIAS) != 0:
        for index in range(tl.load(integers + NUM_BIAS)):
            biased = tl.load(bias_ids_ptr + row * BIASES + index)
            x = tl.where(token == biased, x + tl.load(bias_values_ptr + row * BIASES + index), x)
    if (needs & PENALTIES) != 0:
        counted = tl.load(counts_ptr + row * VOCAB + token, mask=is_token, other=0)
        in_output = counted & 0x7FFFFFFF
        repetition = tl.load(floats_ptr + row * FLOATS + REPETITION)
        repeated = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        x = tl.where(counted != 0, repeated, x)
        x = x - tl.load(floats_ptr + row * FLOATS + FREQUENCY) * in_output.to(tl.float32)
        x = x - tl.load(floats_ptr + row * FLOATS + PRESENCE) * (in_output > 0).to(tl.float32)
    tl.store(adjusted_ptr + place * VOCAB + token, x, mask=is_token)


@triton.jit
def choose_kernel(
    logits_ptr,
    adjusted_ptr,
    rows_ptr,
    integers_ptr,
    floats_ptr,
    row_max_ptr,
    threshold_ptr,
    best_ptr,
    best_token_ptr,
    VOCAB: tl.constexpr,
    INTEGERS: tl.constexpr,
    FLOATS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Grid (num_rows, PARTS): the best token of BLOCK each, with noise where the row has a temperature.

    best ``[num_rows, PARTS]`` float32, best_token int32: -1 where a logit is NaN, or the largest
    of a row with a temperature is infinite. Lowest id among equals.
    """
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row < 0:
        return
    integers = integers_ptr + row * INTEGERS
    needs = tl.load(integers + NEEDS)
    token = part * BLOCK + tl.arange(0, BLOCK)
    is_token = token < VOCAB
    source = logits_ptr + place * VOCAB
    if (needs & ADJUSTED) != 0:
        source = adjusted_ptr + place * VOCAB
    x = tl.load(source + token, mask=is_token, other=float("-inf"))
    num_nan = tl.sum((x != x).to(tl.int32), 0)
    if (needs & RANDOM) != 0:
        row_max = tl.load(row_max_ptr + place)
        # No distribution: every token is masked, or some are infinitely likely.
        if tl.abs(row_max) == float("inf"):
            num_nan = num_nan + 1
        x = tl.div_rn(x - row_max, tl.load(floats_ptr + row * FLOATS + TEMPERATURE))
        x = tl.where(x < tl.load(threshold_ptr + place), float("-inf"), x)
        offset = tl.load(integers + NUM_KNOWN) - tl.load(integers + PROMPT_LEN)
        key0, key1 = row_keys(
            tl.load(integers + SEED_LOW), tl.load(integers + SEED_HIGH), tl.load(integers + CHOICE), offset
        )
        x = x + gumbel(key0, key1, token)
    x = tl.where(is_token, x, float("-inf"))
    best = tl.max(x, 0)
    # The lowest id that has the best value; padding of the last part is above every id.
    best_token = tl.min(tl.where(x == best, token, 0x7FFFFFFF), 0)
    tl.store(best_ptr + place * PARTS + part, best)
    tl.store(best_token_ptr + place * PARTS + part, tl.where(num_nan > 0, -1, best_token))


@triton.jit
def finish_kernel(
    logits_ptr,
    rows_ptr,
    integers_ptr,
    tokens_ptr,
    counts_ptr,
    best_ptr,
    best_token_ptr,
    lse_ptr,
    sampled_ptr,
    logprob_ptr,
    VOCAB: tl.constexpr,
    INTEGERS: tl.constexpr,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
):
    """Grid (num_rows,). Joins the parts; the token becomes the row's next known one and is counted for penalties.

    sampled ``[num_rows]`` int32: the token, -1 where the logits hold NaN (then token 0 takes its place in the row).
    logprob ``[num_rows]``: that of the token under the raw logits, for rows that ask. Padding gets -2.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row < 0:
        tl.store(sampled_ptr + place, -2)
        return
    part = tl.arange(0, PARTS_PAD)
    is_part = part < PARTS
    best = tl.load(best_ptr + place * PARTS + part, mask=is_part, other=float("-inf"))
    token = tl.load(best_token_ptr + place * PARTS + part, mask=is_part, other=0x7FFFFFFF)
    has_nan = tl.min(token, 0) < 0
    chosen = tl.min(tl.where(best == tl.max(best, 0), token, 0x7FFFFFFF), 0)
    sampled = tl.where(has_nan, -1, chosen)
    written = tl.where(has_nan, 0, chosen)
    tl.store(sampled_ptr + place, sampled)
    integers = integers_ptr + row * INTEGERS
    known = tl.load(integers + NUM_KNOWN)
    tl.store(tokens_ptr + row * TOKENS + known, written)
    tl.store(integers + NUM_KNOWN, known + 1)
    if (tl.load(integers + NEEDS) & PENALTIES) != 0:
        count = tl.load(counts_ptr + row * VOCAB + written)
        tl.store(counts_ptr + row * VOCAB + written, count + 1)
    if tl.load(integers + NUM_LOGPROBS) >= 0:
        tl.store(logprob_ptr + place, tl.load(logits_ptr + place * VOCAB + written) - tl.load(lse_ptr + place))
