"""What is due when. Owns a heap of points in time; what a timer means when it fires is decided by who set it.

A timer is never removed: whoever handles it checks that it still applies. Timers of ended requests are swept when they
outnumber the others.
"""

import enum
import heapq
from collections.abc import Callable
from typing import NamedTuple


class TimerKind(enum.IntEnum):
    """What becomes due. Timers of one moment fire in this order."""

    DEADLINE = 1
    QUEUE_TIMEOUT = 2
    DETACHED = 3
    KEPT = 4
    """An ended request's output has been kept long enough."""
    WORKER_GRACE = 5
    DRAIN = 6
    BATCH_WAIT = 7
    """A static batch has waited long enough to fill."""
    GUARD = 8
    """A change of the knobs is under watch."""


class Timer(NamedTuple):
    """`number` is the request's; 0 where none is meant."""

    at_ns: int
    kind: TimerKind
    number: int


_SWEEP_FROM = 1024


class Timers:
    """A heap of timers and the wake that was last asked for."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sweep_at = _SWEEP_FROM
        self._announced: int | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at_ns: int, kind: TimerKind, number: int = 0) -> None:
        """Adds a timer."""
        heapq.heappush(self._heap, Timer(at_ns, kind, number))

    def due(self, now: int) -> Timer | None:
        """Takes out the earliest timer that is due."""
        if self._heap and self._heap[0].at_ns <= now:
            return heapq.heappop(self._heap)
        return None

    def needs_sweep(self) -> bool:
        """Whether the heap has doubled since it was last swept."""
        return len(self._heap) >= self._sweep_at

    def sweep(self, applies: Callable[[Timer], bool]) -> None:
        """Drops timers that no longer apply."""
        self._heap = [timer for timer in self._heap if applies(timer)]
        heapq.heapify(self._heap)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def wake(self) -> int | None:
        """When the next timer is due, if the shell has not been told so yet."""
        if not self._heap:
            return None
        at_ns = self._heap[0].at_ns
        if at_ns == self._announced:
            return None
        self._announced = at_ns
        return at_ns

    def woken(self, now: int) -> None:
        """The shell has woken: what it was told is spent once that time has come."""
        if self._announced is not None and self._announced <= now:
            self._announced = None
