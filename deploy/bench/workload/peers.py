"""The workload that other servers were measured with on the same machine: fixed lengths, ids from Python's generator.

Formulas and seeds are part of the definition: another draw would be another workload.
"""

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from deploy.bench.workload.prompts import HIGHEST_ID, LOWEST_ID
from deploy.bench.workload.request import BenchRequest, Session

NUM_MIXED = 64
PREFILL_TOKENS = 1024
SINGLE_TOKENS = 128
_SINGLE_NUMBER = 10_000
_PREFILL_NUMBER = 20_000

PeersShape = Literal["mixed", "single", "prefill"]


class PeersWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """*mixed*: 64 requests of many lengths. *single*: 128 in, 128 out. *prefill*: 1,024 in, 1 out."""

    shape: PeersShape
    repetition: int = 0
    """Another repetition has other ids, so that no cached prefix is hit."""

    @property
    def name(self) -> str:
        """``peers-mixed`` and so on."""
        return f"peers-{self.shape}"

    def describe(self) -> dict[str, str | int | float]:
        """The repetition; the rest is fixed."""
        return {"repetition": self.repetition}

    def sessions(self) -> Iterator[Session]:
        """64, or one."""
        match self.shape:
            case "mixed":
                for number in range(NUM_MIXED):
                    yield self._session(number, 32 + number * 37 % 224, 16 + number * 53 % 240)
            case "single":
                yield self._session(_SINGLE_NUMBER, SINGLE_TOKENS, SINGLE_TOKENS)
            case "prefill":
                yield self._session(_PREFILL_NUMBER, PREFILL_TOKENS, 1)

    def _session(self, number: int, prompt_tokens: int, output_tokens: int) -> Session:
        source = random.Random(1_000_003 * self.repetition + 7919 * number + prompt_tokens)
        prompt = tuple(source.randrange(LOWEST_ID, HIGHEST_ID + 1) for _ in range(prompt_tokens))
        return Session((BenchRequest(prompt=prompt, output_tokens=output_tokens),))
