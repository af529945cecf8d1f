"""How many calls are open in this process, and whether more are let in. Knows no call's content."""

import asyncio
import enum

from chairlift.ipc.common import Reason
from gateway.errors.api_error import ApiError, GatewayReason


class Admission(enum.Enum):
    """When a method's calls are let in."""

    NEW_WORK = enum.auto()
    """Neither while the gateway drains, nor when it has as many calls as it takes."""
    SERVED = enum.auto()
    """Also while it drains: calls about requests that are in."""
    ALWAYS = enum.auto()
    """Also when it is full: calls that end requests."""


class Gate:
    """Counts the calls of one port. Belongs to one event loop."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_calls = 0
        self.is_draining = False
        self.num_streams = 0

    def enter(self) -> None:
        """A call has begun."""
        self._num_calls += 1
        self._idle.clear()

    def leave(self) -> None:
        """A call has ended."""
        self._num_calls -= 1
        if not self._num_calls:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether every call has ended, or does within that time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def check(self, admission: Admission) -> None:
        """Raises ApiError where a call that has entered is not let in."""
        if admission is Admission.NEW_WORK and self.is_draining:
            raise ApiError(Reason.DRAINING, "this gateway is draining")
        if admission is not Admission.ALWAYS and self._num_calls > self._max_calls:
            limits = (("max_concurrent_streams", str(self._max_calls)),)
            raise ApiError(GatewayReason.TOO_MANY_STREAMS, "this gateway has as many calls as it takes", limits=limits)
