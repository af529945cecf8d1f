"""State of every row of the batch as it lies on the device, and the layout of its columns.

One int32 arena holds all that a plan changes, so that a plan is applied by copying runs of words into it. The names
of columns are shared by the kernels and by whoever packs an upload.
"""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_that

# Integer columns of a row.
TOP_K, SEED_LOW, SEED_HIGH, CHOICE, NEEDS, MIN_TOKENS, PROMPT_LEN, NUM_KNOWN, NUM_ENDS, NUM_BIAS, NUM_LOGPROBS = range(
    11
)
NUM_INTEGERS = 16
"""Eleven are used; rows of 16 words stay aligned."""
# Float columns of a row, as in `gpu_worker.sampling.rows`.
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
NUM_FLOATS = 16

# Bits of a row's needs, as in `gpu_worker.sampling.rows.Needs`: repeated, so that the kernels need no other package.
RANDOM, FILTER, PENALTIES, BIAS, MASKS_ENDS = 1, 2, 4, 8, 16
ADJUSTED = PENALTIES | BIAS | MASKS_ENDS
"""A row with any of these is sampled from adjusted logits."""

MAX_BIAS = 304  # a multiple of 16, as every region's width
"""Entries of logit_bias a row (the contract allows 300)."""


@dataclass(frozen=True, slots=True)
class RowStateShape:
    """Sizes of the arena."""

    num_rows: int
    max_tokens: int
    """Ids that a row may hold, the one sampled past its end included."""
    max_blocks: int
    max_ends: int
    """Ids that end a row: its stop ids and EOS."""
    vocab_size: int
    num_step_words: int = 0
    """Words that describe a step, changed by the same upload as the rows."""


@dataclass(frozen=True, slots=True)
class Region:
    """Words of the arena that hold one table."""

    start: int
    width: int
    """Words a row."""

    def at(self, row: int, column: int = 0) -> int:
        """Index of a word in the arena."""
        return self.start + row * self.width + column


class RowState:
    """The arena and views into it. R rows."""

    def __init__(self, shape: RowStateShape, device: torch.device) -> None:
        check_that(shape.num_rows > 0, "a batch needs a row")
        self.shape = shape
        self.device = device
        self._num_words = 0
        self.integer_region = self._region(NUM_INTEGERS)
        self.float_region = self._region(NUM_FLOATS)
        self.token_region = self._region(shape.max_tokens)
        self.table_region = self._region(shape.max_blocks)
        self.end_region = self._region(shape.max_ends)
        self.bias_id_region = self._region(MAX_BIAS)
        self.bias_value_region = self._region(MAX_BIAS)
        self.step_start = self._num_words
        self._num_words += shape.num_step_words
        check_that(self._num_words < 1 << 31, f"{self._num_words} words of row state: kernels count them in 31 bits")
        self.arena = torch.zeros(self._num_words, dtype=torch.int32, device=device)
        self.integers = self._view(self.integer_region)
        """[R, NUM_INTEGERS] int32."""
        self.floats = self._view(self.float_region).view(torch.float32)
        """[R, NUM_FLOATS]."""
        self.tokens = self._view(self.token_region)
        """[R, max_tokens]: ids known."""
        self.block_tables = self._view(self.table_region)
        """[R, max_blocks]."""
        self.ends = self._view(self.end_region)
        """[R, max_ends]; the first NUM_ENDS count."""
        self.bias_ids = self._view(self.bias_id_region)
        self.bias_values = self._view(self.bias_value_region).view(torch.float32)
        """[R, MAX_BIAS]; the first NUM_BIAS count."""
        self.step_words = self.arena[self.step_start :]
        """[num_step_words] int32, divided by whoever runs steps."""
        self.counts = torch.zeros((shape.num_rows, shape.vocab_size), dtype=torch.int32, device=device)
        """[R, V]: times that a token occurs in the row's output; the sign bit: it occurs in the prompt."""

    @property
    def num_bytes(self) -> int:
        """Device memory taken."""
        return 4 * (self.arena.numel() + self.counts.numel())

    def _region(self, width: int) -> Region:
        width = -(-width // 16) * 16
        region = Region(self._num_words, width)
        self._num_words += width * self.shape.num_rows
        return region

    def _view(self, region: Region) -> torch.Tensor:
        end = region.start + region.width * self.shape.num_rows
        return self.arena[region.start : end].view(self.shape.num_rows, region.width)
