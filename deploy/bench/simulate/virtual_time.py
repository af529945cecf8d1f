"""An event loop in which waiting takes no time: when nothing is ready, its clock jumps to the next timer.

For programs that wait for timers only. One that waits for a socket or a thread would find its timers fired too early.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_START_S = 1000.0

_T = TypeVar("_T")


class _JumpingSelector(selectors.DefaultSelector):
    now_s = _START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout:
            self.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time` starts at a fixed moment."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now_s


class VirtualClock:
    """A `Clock` of the running `VirtualLoop`."""

    def now_ns(self) -> int:
        """Nanoseconds of virtual time."""
        return round(asyncio.get_running_loop().time() * 1e9)

    async def wait_until(self, at_ns: int) -> None:
        """Returns at `at_ns`, or at once when it has passed."""
        await asyncio.sleep(max(0, at_ns - self.now_ns()) / 1e9)


def run_virtually(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Runs a coroutine function to its end in a virtual loop of its own; not from within a running loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
