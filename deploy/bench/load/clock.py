"""Time as the load generator sees it. A test may put another in its place."""

import asyncio
import time
from typing import Protocol

_COARSE_MARGIN_NS = 3_000_000


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now_ns(self) -> int:
        """Nanoseconds from some fixed moment."""

    async def wait_until(self, at_ns: int) -> None:
        """Returns at `at_ns`, or at once when it has passed."""


class MonotonicClock:
    """The machine's clock, precise to about 0.1 ms."""

    def now_ns(self) -> int:
        """Nanoseconds from some fixed moment."""
        return time.monotonic_ns()

    async def wait_until(self, at_ns: int) -> None:
        """Returns at `at_ns`, or at once when it has passed."""
        coarse_ns = at_ns - _COARSE_MARGIN_NS - time.monotonic_ns()
        if coarse_ns > 0:
            await asyncio.sleep(coarse_ns / 1e9)
        fine_ns = at_ns - time.monotonic_ns()
        if fine_ns > 0:
            # The event loop's own timers wake up to 1 ms late (epoll counts in ms): the server would be charged for it.
            await asyncio.to_thread(time.sleep, fine_ns / 1e9)
