"""First come, first served: by arrival; the latest arrival gives way."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from scheduler_svc.core.sequence import Sequence


def by_arrival(sequence: Sequence) -> tuple[int, int, int]:
    """A total order of sequences: arrival, then request number, then choice."""
    request = sequence.request
    return (request.arrival_ns, request.number, sequence.choice)


class ArrivalOrder:
    """A list sorted by arrival: O(log n) comparisons a change, and one move of at most 8 bytes a waiting sequence."""

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        at = 0
        while at < len(self._waiting):
            sequence = self._waiting[at]
            yield sequence
            if at < len(self._waiting) and self._waiting[at] is sequence:
                at += 1

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


class Fcfs:
    """The policy ``fcfs``."""

    def __init__(self) -> None:
        self._queue = ArrivalOrder()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        self._queue.add(sequence)

    def remove(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        self._queue.remove(sequence)

    def candidates(self, now: int) -> Iterator[Sequence]:
        """See Policy."""
        return iter(self._queue)

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """The latest arrival."""
        return max(running, key=by_arrival, default=None)

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """See Policy."""
        return self._queue.index(sequence)
