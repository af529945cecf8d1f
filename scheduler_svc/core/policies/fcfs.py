"""First come, first served: by arrival; the latest arrival gives way.

The order of Orca (Yu et al., OSDI 2022) and of vLLM. Nobody starves: who waits is passed by nobody who came later, but
for smaller ones while memory has no room for it, and that only for a bounded time.
"""

from collections.abc import Iterable, Iterator

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.policies.arrival import ArrivalOrder, by_arrival
from scheduler_svc.core.sequence import Sequence


class Fcfs:
    """The policy ``fcfs``."""

    passed_reason: WaitReason | None = None

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

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Nobody: who came first stays."""
        return None

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """See Policy."""
        return self._queue.index(sequence)
