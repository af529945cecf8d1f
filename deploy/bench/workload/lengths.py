"""Distributions of prompt and output lengths, by an argument such as ``32:256``. Owns no generator of its own."""

from typing import TYPE_CHECKING

import msgspec

from deploy.bench.workload.names import WorkloadError

if TYPE_CHECKING:
    import numpy

MAX_LENGTH = 1 << 24
"""Tokens: longer than any model takes."""


class LengthRange(msgspec.Struct, frozen=True):
    """Uniform over whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, random: "numpy.random.Generator") -> int:
        """One length."""
        return int(random.integers(self.low, self.high + 1))

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


def parse_length_range(text: str) -> LengthRange:
    """``LENGTH`` or ``LOW:HIGH`` in tokens. Raises WorkloadError."""
    low, colon, high = text.partition(":")
    try:
        found = LengthRange(int(low), int(high) if colon else int(low))
    except ValueError:
        raise WorkloadError(f"{text!r}: expected a number of tokens, or LOW:HIGH") from None
    if not 1 <= found.low <= found.high <= MAX_LENGTH:
        raise WorkloadError(f"{text!r}: expected 1 <= LOW <= HIGH <= {MAX_LENGTH:,}")
    return found
