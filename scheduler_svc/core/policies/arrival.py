"""Sequences in order of arrival: what every policy is built from."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler_svc.core.sequence import Sequence


def by_arrival(sequence: Sequence) -> tuple[int, int, int]:
    """A total order of sequences: arrival, then request number, then choice."""
    request = sequence.request
    return (request.arrival_ns, request.number, sequence.choice)


class ArrivalOrder:
    """A list sorted by arrival: O(log n) comparisons a change, and one move of at most 8 bytes a waiting sequence."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        at = self.index(sequence)
        return at < len(self._waiting) and self._waiting[at] is sequence

    def __iter__(self) -> Iterator[Sequence]:
        """In order; the one yielded last may be removed meanwhile."""
        at = 0
        while at < len(self._waiting):
            sequence = self._waiting[at]
            yield sequence
            if at < len(self._waiting) and self._waiting[at] is sequence:
                at += 1

    def first(self) -> Sequence:
        """The earliest arrival. Raises IndexError when empty."""
        return self._waiting[0]

    def add(self, sequence: Sequence) -> None:
        """Puts it at its place."""
        insort(self._waiting, sequence, key=by_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Takes it out. Raises KeyError when it is not here."""
        at = self.index(sequence)
        if at == len(self._waiting) or self._waiting[at] is not sequence:
            raise KeyError(sequence.request.number)
        del self._waiting[at]

    def index(self, sequence: Sequence) -> int:
        """How many come before it."""
        return bisect_left(self._waiting, by_arrival(sequence), key=by_arrival)
