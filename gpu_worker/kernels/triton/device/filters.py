# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""top_k, top_p and min_p as one threshold a row, found without sorting.

Scaled logits are (x - largest) / temperature, none above 0, so that a larger one has a smaller magnitude: their bits
without the sign are integers in falling order of value. The threshold is the smallest magnitude t such that the
tokens at or below it are k, or hold p of the mass: found digit by digit, 16 candidates a pass over the row, as radix
selection does (Alabi et al., 2012). The result is the exact value of a token, ties included.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.device.columns import ADJUSTED, FILTER, MIN_P, NEEDS, RANDOM, TEMPERATURE, TOP_K, TOP_P


@triton.jit
def magnitudes(source, start, row_max, temperature, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Bits of the scaled logits without their sign, int32 [BLOCK]; 0x7FFFFFFF past the row's end."""
    token = start + tl.arange(0, BLOCK)
    x = tl.load(source + token, mask=token < VOCAB, other=float("-inf"))
    scaled = tl.div_rn(x - row_max, temperature)
    bits = scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(token < VOCAB, bits, 0x7FFFFFFF)


@triton.jit
def mass_of(magnitude):
    """exp of the scaled logit that has these bits; 0 for those that are masked or past the row's end."""
    value = magnitude.to(tl.float32, bitcast=True)
    return tl.where(magnitude >= 0x7F800000, 0.0, tl.exp(-value))


@triton.jit
def select_digit(
    source,
    row_max,
    temperature,
    target,
    prefix,
    LEVEL: tl.constexpr,
    WEIGHTED: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`prefix` with its digit LEVEL, of 8 from the top: one pass that weighs 16 candidates at once."""
    SHIFT: tl.constexpr = 28 - 4 * LEVEL
    # Bit 31 was the sign, which is gone: the top digit has 8 values.
    NUM_DIGITS: tl.constexpr = 16 if LEVEL > 0 else 8
    digit = tl.arange(0, NUM_DIGITS)
    # The last magnitude of each of the ranges that the digit divides.
    candidate = prefix + digit * (1 << SHIFT) + ((1 << SHIFT) - 1)
    reached = tl.zeros([BLOCK, NUM_DIGITS], tl.float32)
    for start in tl.range(0, VOCAB, BLOCK):
        magnitude = magnitudes(source, start, row_max, temperature, VOCAB, BLOCK)
        is_below = magnitude[:, None] <= candidate[None, :]
        if WEIGHTED:
            reached += tl.where(is_below, mass_of(magnitude)[:, None], 0.0)
        else:
            reached += (is_below & (magnitude < 0x7FFFFFFF)[:, None]).to(tl.float32)
    is_short = tl.sum(reached, 0) < target
    # Rounding may leave every range short of all the mass: then the last one is the place.
    place = tl.minimum(tl.sum(is_short.to(tl.int32), 0), NUM_DIGITS - 1)
    return prefix + place * (1 << SHIFT)


@triton.jit
def select(
    source, row_max, temperature, target, limit, WEIGHTED: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Smallest magnitude, `limit` at most, whose tokens at or below it number `target`, or weigh it (WEIGHTED)."""
    prefix = limit * 0
    for level in tl.static_range(8):
        prefix = select_digit(source, row_max, temperature, target, prefix, level, WEIGHTED, VOCAB, BLOCK)
    return tl.minimum(prefix, limit)


@triton.jit
def thresholds_kernel(
    logits_ptr,
    adjusted_ptr,
    rows_ptr,
    integers_ptr,
    floats_ptr,
    row_max_ptr,
    threshold_ptr,
    VOCAB: tl.constexpr,
    INTEGERS: tl.constexpr,
    FLOATS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (num_rows,). For rows with a temperature: the largest logit, and the smallest scaled one that is kept."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    if row < 0:
        return
    needs = tl.load(integers_ptr + row * INTEGERS + NEEDS)
    if (needs & RANDOM) == 0:
        return
    source = logits_ptr + place * VOCAB
    if (needs & ADJUSTED) != 0:
        source = adjusted_ptr + place * VOCAB
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(source + token, mask=token < VOCAB, other=float("-inf")))
    row_max = tl.max(highest, 0)
    tl.store(row_max_ptr + place, row_max)
    threshold = float("-inf")
    if (needs & FILTER) != 0:
        temperature = tl.load(floats_ptr + row * FLOATS + TEMPERATURE)
        top_k = tl.load(integers_ptr + row * INTEGERS + TOP_K)
        top_p = tl.load(floats_ptr + row * FLOATS + TOP_P)
        allowed = top_k * 0 + 0x7F800000
        is_limited = (top_k > 0) & (top_k < VOCAB)
        if is_limited:
            allowed = select(source, row_max, temperature, top_k.to(tl.float32), allowed, False, VOCAB, BLOCK)
        if top_p < 1.0:
            above = tl.zeros([BLOCK], tl.float32)
            num_above = tl.zeros([BLOCK], tl.float32)
            for start in tl.range(0, VOCAB, BLOCK):
                magnitude = magnitudes(source, start, row_max, temperature, VOCAB, BLOCK)
                is_above = magnitude < allowed
                above += tl.where(is_above, mass_of(magnitude), 0.0)
                num_above += is_above.to(tl.float32)
            kept = tl.sum(above, 0)
            if is_limited:
                # Of tokens tied at the k-th place only as many count as reach k.
                at_edge = top_k.to(tl.float32) - tl.sum(num_above, 0)
                kept = kept + at_edge * tl.exp(-allowed.to(tl.float32, bitcast=True))
            allowed = select(source, row_max, temperature, top_p * kept, allowed, True, VOCAB, BLOCK)
        threshold = -allowed.to(tl.float32, bitcast=True)
        min_p = tl.load(floats_ptr + row * FLOATS + MIN_P)
        if min_p > 0.0:
            threshold = tl.maximum(threshold, tl.log(min_p))
    tl.store(threshold_ptr + place, threshold)
