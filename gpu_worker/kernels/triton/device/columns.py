"""Columns of a row and bits of its needs, as constants that kernels may read."""

import triton.language as tl

from gpu_worker.kernels.triton import row_state

TOP_K = tl.constexpr(row_state.TOP_K)
SEED_LOW = tl.constexpr(row_state.SEED_LOW)
SEED_HIGH = tl.constexpr(row_state.SEED_HIGH)
CHOICE = tl.constexpr(row_state.CHOICE)
NEEDS = tl.constexpr(row_state.NEEDS)
MIN_TOKENS = tl.constexpr(row_state.MIN_TOKENS)
PROMPT_LEN = tl.constexpr(row_state.PROMPT_LEN)
NUM_KNOWN = tl.constexpr(row_state.NUM_KNOWN)
NUM_ENDS = tl.constexpr(row_state.NUM_ENDS)
NUM_BIAS = tl.constexpr(row_state.NUM_BIAS)
NUM_LOGPROBS = tl.constexpr(row_state.NUM_LOGPROBS)

TEMPERATURE = tl.constexpr(row_state.TEMPERATURE)
TOP_P = tl.constexpr(row_state.TOP_P)
MIN_P = tl.constexpr(row_state.MIN_P)
REPETITION = tl.constexpr(row_state.REPETITION)
PRESENCE = tl.constexpr(row_state.PRESENCE)
FREQUENCY = tl.constexpr(row_state.FREQUENCY)

RANDOM = tl.constexpr(row_state.RANDOM)
FILTER = tl.constexpr(row_state.FILTER)
PENALTIES = tl.constexpr(row_state.PENALTIES)
BIAS = tl.constexpr(row_state.BIAS)
NEEDS_MIN_TOKENS = tl.constexpr(row_state.MASKS_ENDS)
ADJUSTED = tl.constexpr(row_state.ADJUSTED)
