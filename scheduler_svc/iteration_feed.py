"""Sends iterations to gateways that watch, on credit, and keeps the core's account of them only as long as one does.

A gateway that stops asking (it is gone, or stuck) gets what its credit allows and no more: what nobody reads must not
fill the queue that carries its clients' tokens.
"""

import msgspec

from chairlift.ipc import operator
from scheduler_svc.core.core import Core
from scheduler_svc.core.iterations import IterationWatch, WatchOptions
from scheduler_svc.gateway_link import GatewayLink

_NS = 1_000_000_000
MAX_CREDIT = 256
"""Iterations on their way to one gateway."""
_LEASE_NS = 10 * _NS
"""How long a gateway counts as watching after it has last said so."""


class _Watcher(msgspec.Struct):
    credit: int
    options: WatchOptions
    until_ns: int


class IterationFeed:
    """Belongs to the scheduler's loop."""

    def __init__(self, core: Core, epoch: int, gateways: GatewayLink) -> None:
        self._core = core
        self._epoch = epoch
        self._gateways = gateways
        self._watchers: dict[int, _Watcher] = {}
        self.watch: IterationWatch | None = None
        """The core's account; None while nobody watches."""

    def command(self, gateway: int, command: operator.WatchCommand, now: int) -> None:
        """A gateway watches, goes on watching, or has enough."""
        self._watchers.pop(gateway, None)
        if command.credit > 0:
            rate = command.max_per_second
            # Nonsense from a peer (negative, infinite, no number) is the bound.
            is_sound = 0 < rate <= operator.MAX_ITERATIONS_PER_SECOND
            interval_ns = round(_NS / (rate if is_sound else operator.MAX_ITERATIONS_PER_SECOND))
            options = WatchOptions(interval_ns, command.include_riders)
            self._watchers[gateway] = _Watcher(min(command.credit, MAX_CREDIT), options, now + _LEASE_NS)
        self._update()

    def report(self, now: int) -> None:
        """Sends what was completed since the last call. Only to be called while there is a `watch`."""
        assert self.watch is not None
        for iteration in self.watch.take(now):
            message = operator.IterationReport(self._epoch, iteration)
            for gateway, watcher in self._watchers.items():
                if watcher.credit and self._gateways.offer(gateway, message):
                    watcher.credit -= 1
        ended = [number for number, one in self._watchers.items() if self._has_ended(number, one, now)]
        if ended:
            for number in ended:
                del self._watchers[number]
            self._update()

    def _has_ended(self, gateway: int, watcher: _Watcher, now: int) -> bool:
        return now >= watcher.until_ns or not self._gateways.is_attached(gateway)

    def _update(self) -> None:
        wanted = [watcher.options for watcher in self._watchers.values()]
        options = None
        if wanted:
            options = WatchOptions(
                min(one.min_interval_ns for one in wanted), any(one.include_riders for one in wanted)
            )
        self.watch = self._core.watch(options)
