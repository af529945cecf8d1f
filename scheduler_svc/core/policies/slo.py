"""Least slack first: who is nearest to missing its time to first token, then its time between tokens.

A request's slack shrinks for all alike, so their order is that of a fixed moment: when each must begin at the latest,
its objective less what its own prompt takes (earliest deadline first, Liu and Layland, 1973). Under overload that order
alone makes everyone late one after another: those that have missed theirs stand behind those that can still be met. So
that they get on at all, one that has waited `max_wait_ns` goes before everyone.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.policies.arrival import ArrivalOrder, by_arrival
from scheduler_svc.core.sequence import Sequence

_DEFAULT_TTFT_NS = 10_000_000_000
_DEFAULT_ITL_NS = 1_000_000_000

_Key = tuple[int, int, tuple[int, int, int]]


class Slo:
    """The policy ``slo``. `ttft_ns` is the objective of requests that name none."""

    passed_reason: WaitReason | None = WaitReason.PRIORITY

    def __init__(self, ttft_ns: int | None, max_wait_ns: int) -> None:
        self._ttft_ns = ttft_ns or _DEFAULT_TTFT_NS
        self._max_wait_ns = max_wait_ns
        self._all = ArrivalOrder()
        self._keys: list[_Key] = []
        self._sequences: list[Sequence] = []
        self._key_of: dict[Sequence, _Key] = {}

    def __len__(self) -> int:
        return len(self._all)

    def _due_ns(self, sequence: Sequence) -> int:
        """When it must begin at the latest, as a new request."""
        request = sequence.request
        return request.arrival_ns + (request.ttft_slo_ns or self._ttft_ns) - request.prefill_ns

    def _key(self, sequence: Sequence, now: int) -> _Key:
        itl_ns = sequence.request.itl_slo_ns or _DEFAULT_ITL_NS
        due_ns = self._due_ns(sequence)
        if sequence.has_run:
            # It owes its next token, not its first.
            due_ns = now + itl_ns - sequence.request.prefill_ns
        return (due_ns, itl_ns, by_arrival(sequence))

    def add(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        key = self._key_of[sequence] = self._key(sequence, now)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._sequences.insert(at, sequence)
        self._all.add(sequence)

    def remove(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        at = bisect_left(self._keys, self._key_of.pop(sequence))
        del self._keys[at], self._sequences[at]
        self._all.remove(sequence)

    def candidates(self, now: int) -> Iterator[Sequence]:
        """Those that have waited too long; those that can still be met, least slack first; then the rest."""
        for sequence in self._all:
            if now - sequence.request.arrival_ns < self._max_wait_ns:
                break
            yield sequence
        first = bisect_left(self._keys, (now,))
        for sequence in [*self._sequences[first:], *self._sequences[:first]]:
            if sequence in self._key_of and now - sequence.request.arrival_ns < self._max_wait_ns:
                yield sequence

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Whose objective was the latest when it came: that order does not change while it runs."""
        return max(running, key=lambda one: (self._due_ns(one), by_arrival(one)), default=None)

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Nobody: who has boarded meets its own objective."""
        return None

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """Those with less slack."""
        return bisect_left(self._keys, self._key_of.get(sequence) or self._key(sequence, now))
