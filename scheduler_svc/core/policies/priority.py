"""Larger priority first, with ageing; within a priority by arrival.

Strict priority starves: a steady stream of the higher class leaves the lower one waiting for ever. Here a request that
has waited `max_wait_ns` goes before everyone, and keeps that rank when it has boarded, so that it is not put back at
once. Once it is that old it stands behind earlier arrivals only: under any load of later ones, its wait is bounded by
`max_wait_ns` and what those earlier ones take.

A waiting request does not wait for a running one of lower rank: that one gives way and keeps its place.
"""

from collections.abc import Iterable, Iterator

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.policies.arrival import ArrivalOrder, by_arrival
from scheduler_svc.core.sequence import Sequence

_AGED = 1 << 40
"""The rank of those that have waited too long: above every priority."""


class Priority:
    """The policy ``priority``."""

    passed_reason: WaitReason | None = WaitReason.PRIORITY

    def __init__(self, max_wait_ns: int) -> None:
        self._max_wait_ns = max_wait_ns
        self._all = ArrivalOrder()
        self._classes: dict[int, ArrivalOrder] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        self._all.add(sequence)
        self._classes.setdefault(sequence.request.priority, ArrivalOrder()).add(sequence)

    def remove(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        self._all.remove(sequence)
        priority = sequence.request.priority
        self._classes[priority].remove(sequence)
        if not len(self._classes[priority]):
            del self._classes[priority]
        request = sequence.request
        if request.rank is None and self._has_aged(sequence, now):
            request.rank = _AGED

    def _has_aged(self, sequence: Sequence, now: int) -> bool:
        return now - sequence.request.arrival_ns >= self._max_wait_ns

    def candidates(self, now: int) -> Iterator[Sequence]:
        """Those that have waited too long, by arrival; then by priority, then by arrival."""
        for sequence in self._all:
            if not self._has_aged(sequence, now):
                break
            yield sequence
        for priority in sorted(self._classes, reverse=True):
            for sequence in self._classes.get(priority, ()):
                if not self._has_aged(sequence, now):
                    yield sequence

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """The lowest rank, then the latest arrival."""
        return min(running, key=_yielding, default=None)

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """The victim, where it is of lower rank than the one that waits."""
        victim = self.victim(running, now)
        rank = _AGED if self._has_aged(sequence, now) else sequence.request.priority
        return victim if victim is not None and _rank(victim) < rank else None

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """Those of higher priority, and earlier ones of its own."""
        priority = sequence.request.priority
        higher = sum(len(order) for other, order in self._classes.items() if other > priority)
        equal = self._classes.get(priority)
        return higher if equal is None else higher + equal.index(sequence)


def _rank(sequence: Sequence) -> int:
    request = sequence.request
    return request.priority if request.rank is None else request.rank


def _yielding(sequence: Sequence) -> tuple[int, tuple[int, ...]]:
    return (_rank(sequence), tuple(-part for part in by_arrival(sequence)))
