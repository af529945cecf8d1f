"""Which of several replicas gets a request: the one that has computed its prefix before, unless it has too much to do.

An approximate map of prefixes, as SGLang's router keeps one: the gateway remembers where it sent each portion of a
prompt, and never asks the replicas. Load is bounded as in consistent hashing with bounded loads (Mirrokni et
al., 2016).
Pure: knows neither links nor clocks.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

PORTION_TOKENS = 64
_MAX_PORTIONS = 64
"""Longer prompts are told apart well enough by their first 4,096 tokens."""
_MAX_KNOWN = 100_000
_LOAD_FACTOR = 1.25
_LOAD_SLACK = 4
_TOKEN_BYTES = 4


class Candidate(msgspec.Struct, frozen=True):
    """A replica that takes requests."""

    replica_id: str
    load: int
    """Sequences that run or wait there."""


class PrefixPlacement:
    """Remembers which replica has seen which prefix; bounded, the least recently used is forgotten."""

    def __init__(self, max_known: int = _MAX_KNOWN) -> None:
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._max_known = max_known

    @property
    def num_known(self) -> int:
        """Portions that are remembered."""
        return len(self._known)

    def choose(self, prompt: bytes, scope: str, candidates: Sequence[Candidate]) -> str:
        """The replica for a prompt (u32 token ids), and remembers it. `scope` tells prompts apart that share no cache.

        Of replicas whose load is not much above the mean: the one with the longest part of the prompt, else the one
        with the least load, and among equals the same one every time, in every gateway.
        """
        portions = _portions(prompt, scope)
        bound = _LOAD_FACTOR * sum(each.load for each in candidates) / len(candidates) + _LOAD_SLACK
        fitting = [each for each in candidates if each.load <= bound]
        chosen = self._holder(portions, {each.replica_id for each in fitting})
        if chosen is None:
            start = portions[0] if portions else _digest(scope.encode(), prompt)
            chosen = min(fitting, key=lambda each: (each.load, rendezvous(start, each.replica_id))).replica_id
        self._remember(portions, chosen)
        return chosen

    def _holder(self, portions: Sequence[bytes], fitting: set[str]) -> str | None:
        for portion in reversed(portions):
            holder = self._known.get(portion)
            if holder in fitting:
                return holder
        return None

    def _remember(self, portions: Sequence[bytes], replica_id: str) -> None:
        known = self._known
        # The longest first, so that it is forgotten before what it begins with.
        for portion in reversed(portions):
            known[portion] = replica_id
            known.move_to_end(portion)
        while len(known) > self._max_known:
            known.popitem(last=False)


def rendezvous(key: bytes, replica_id: str) -> bytes:
    """Rendezvous weight (Thaler and Ravishankar, 1998): the same in every gateway."""
    return _digest(key, replica_id.encode())


def _portions(prompt: bytes, scope: str) -> list[bytes]:
    """A hash for each whole portion, which stands for all before it as well."""
    size = PORTION_TOKENS * _TOKEN_BYTES
    digest, portions = _digest(scope.encode(), b""), []
    for start in range(0, min(len(prompt) // size, _MAX_PORTIONS) * size, size):
        digest = _digest(digest, prompt[start : start + size])
        portions.append(digest)
    return portions


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8, key=key[:64]).digest()
