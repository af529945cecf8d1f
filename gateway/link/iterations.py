"""Iterations from the schedulers to whoever watches them through this gateway.

Asks a scheduler for iterations only while somebody here watches, and only for as many as are taken in before it asks
again. Each watcher has a bounded buffer: what it does not take is dropped, oldest first, and counted. Knows no gRPC.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from chairlift.ipc.operator import MAX_ITERATIONS_PER_SECOND, Iteration, IterationReport, WatchCommand
from gateway.link.replica_link import ReplicaLink

_RENEW_S = 1.0
_CREDIT = 256
"""Iterations that a scheduler may send until it is asked again: more than come in that time, at the highest rate."""
MAX_BUFFERED = 64
"""Iterations kept for one watcher of one replica."""
MAX_BUFFERED_NAMES = 16_384
"""Names of sequences in them, all together."""


class Batch(msgspec.Struct, frozen=True):
    """What a watcher takes of one replica at once."""

    replica_id: str
    iterations: tuple[Iteration, ...]
    num_missed: int
    """Left out since the batch before."""


class _Buffer:
    """What one watcher has not taken yet of one replica."""

    def __init__(self) -> None:
        self._kept: deque[Iteration] = deque()
        self._num_names = 0
        self._num_missed = 0
        self._last: tuple[int, int] | None = None
        """(epoch, number) of the last iteration that was offered."""
        self._due = 0.0

    def offer(self, epoch: int, iteration: Iteration, interval_s: float, now: float) -> bool:
        """Whether it is kept; one that comes too soon after the last is not."""
        if self._last is not None and self._last[0] == epoch:
            self._num_missed += max(0, iteration.number - self._last[1] - 1)
        self._last = (epoch, iteration.number)
        # As the scheduler has it: two at once are let pass.
        if self._due - now > interval_s:
            self._num_missed += 1
            return False
        self._due = max(self._due, now) + interval_s
        self._kept.append(iteration)
        self._num_names += _num_names(iteration)
        while len(self._kept) > MAX_BUFFERED or (self._num_names > MAX_BUFFERED_NAMES and len(self._kept) > 1):
            self._num_names -= _num_names(self._kept.popleft())
            self._num_missed += 1
        return True

    def take(self, replica_id: str) -> Batch | None:
        """All of it; None when there is nothing."""
        if not self._kept:
            return None
        batch = Batch(replica_id, tuple(self._kept), self._num_missed)
        self._kept.clear()
        self._num_names = self._num_missed = 0
        return batch


def _num_names(iteration: Iteration) -> int:
    return len(iteration.riders) + len(iteration.boarded) + len(iteration.departed) + len(iteration.displaced)


class Watcher:
    """One watching call."""

    def __init__(self, replica_id: str, max_per_second: float, *, include_riders: bool) -> None:
        self.replica_id = replica_id
        """Only this one's; empty: all."""
        self.max_per_second = max_per_second
        self.include_riders = include_riders
        self._buffers: dict[str, _Buffer] = {}
        self._arrived = asyncio.Event()

    def wants(self, link: ReplicaLink) -> bool:
        """Whether iterations of that replica are for it."""
        return self.replica_id in ("", link.replica_id)

    def offer(self, link: ReplicaLink, report: IterationReport) -> None:
        """An iteration has come."""
        buffer = self._buffers.setdefault(link.replica_id, _Buffer())
        if buffer.offer(report.epoch, report.iteration, 1 / self.max_per_second, time.monotonic()):
            self._arrived.set()

    async def take(self) -> list[Batch]:
        """What has come since the last call, at least one batch; waits for it."""
        await self._arrived.wait()
        self._arrived.clear()
        taken = (buffer.take(replica_id) for replica_id, buffer in self._buffers.items())
        return [batch for batch in taken if batch is not None]


class IterationHub:
    """All watchers of this gateway. Belongs to one event loop."""

    def __init__(self, links: Callable[[], Sequence[ReplicaLink]]) -> None:
        """`links` gives the replicas known at the time."""
        self._links = links
        self._watchers: list[Watcher] = []
        self._asked: set[str] = set()
        """Endpoints of those that were asked for iterations."""
        self._timer: asyncio.TimerHandle | None = None

    def join(self, watcher: Watcher) -> None:
        """It is told iterations from now on."""
        self._watchers.append(watcher)
        self._ask()

    def leave(self, watcher: Watcher) -> None:
        """It has enough."""
        self._watchers.remove(watcher)
        self._ask()

    def on_report(self, link: ReplicaLink, report: IterationReport) -> None:
        """A scheduler has told one."""
        for watcher in self._watchers:
            if watcher.wants(link):
                watcher.offer(link, report)

    def close(self) -> None:
        """Nobody is asked any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        """Tells schedulers what is wanted, and again in a while: they forget it otherwise, as does a new one."""
        self.close()
        for link in self._links():
            wanting = [watcher for watcher in self._watchers if watcher.wants(link)]
            if wanting:
                rate = max(watcher.max_per_second for watcher in wanting)
                riders = any(watcher.include_riders for watcher in wanting)
                link.send(WatchCommand(_CREDIT, min(rate, MAX_ITERATIONS_PER_SECOND), riders))
                self._asked.add(link.endpoint)
            elif link.endpoint in self._asked:
                self._asked.remove(link.endpoint)
                link.send(WatchCommand(0, MAX_ITERATIONS_PER_SECOND))
        if self._watchers:
            self._timer = asyncio.get_running_loop().call_later(_RENEW_S, self._ask)
