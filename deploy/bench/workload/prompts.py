"""Prompts of random token ids: no two share a prefix unless they are meant to. Seeded by purpose and number."""

import enum

import msgspec
import numpy

LOWEST_ID = 1_000
HIGHEST_ID = 47_999
WARMUP_SEED_STEP = 1_000_003
"""From the seed of a run to that of its warm-up: other prompts, so that none is cached when the run begins."""


class Purpose(enum.IntEnum):
    """What ids are drawn for: each purpose and number has a stream of its own, so that none depends on another."""

    SHAPE = 1
    UNIQUE = 2
    SHARED = 3
    BLOCK = 4
    ARRIVAL = 5


class TokenIds(msgspec.Struct, frozen=True):
    """Draws token ids of plain text. The range leaves out special tokens, as the peers' workload does."""

    seed: int
    low: int = LOWEST_ID
    high: int = HIGHEST_ID

    def draw(self, purpose: Purpose, number: int, length: int) -> tuple[int, ...]:
        """`length` ids: the same for the same seed, purpose and number; a longer draw begins with the shorter one."""
        drawn = random_stream(self.seed, purpose, number).integers(self.low, self.high + 1, size=length)
        return tuple(drawn.tolist())


def token_ids_within(seed: int, vocab_size: int | None) -> TokenIds:
    """Ids that a model with `vocab_size` tokens knows; None: not known, the usual range."""
    if vocab_size is None or vocab_size > HIGHEST_ID:
        return TokenIds(seed)
    return TokenIds(seed, min(LOWEST_ID, vocab_size // 4), max(1, vocab_size - 1 - vocab_size // 50))


def random_stream(seed: int, purpose: Purpose, number: int = 0) -> numpy.random.Generator:
    """A generator of its own for each seed, purpose and number."""
    return numpy.random.Generator(numpy.random.PCG64(numpy.random.SeedSequence((seed, int(purpose), number))))
