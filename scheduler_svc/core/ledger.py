"""Where waiting time went, by reason, summing to the nanosecond, at no cost a waiting request.

Most waiting requests wait for the same thing at one moment: what stopped the last plan from boarding more. So one clock
sums time by that reason; a request remembers the clock's reading when its wait began, and takes the difference when it
ends. A preempted request knows its own reason instead. Where a policy lets later arrivals board before a request, its
wait is for the policy's order from the first of them on.
"""

from bisect import bisect_right
from typing import NamedTuple

from chairlift.ipc.common import WaitReason

_NUM_REASONS = len(WaitReason) + 1
_NO_TIME = (0,) * _NUM_REASONS


class ClockReading:
    """Totals by reason at a moment, and the reason that runs since."""

    __slots__ = ("reason", "since_ns", "totals")

    def __init__(self, totals: tuple[int, ...], reason: WaitReason, since_ns: int) -> None:
        self.totals = totals
        self.reason = reason
        self.since_ns = since_ns

    def at(self, now: int) -> list[int]:
        """Totals by reason at `now`, not before `since_ns`."""
        totals = list(self.totals)
        totals[self.reason] += now - self.since_ns
        return totals


class WaitClock:
    """Time by what the head of the queue waited for. Readings between two changes of reason share one object."""

    def __init__(self, now: int = 0) -> None:
        self.reading = ClockReading(_NO_TIME, WaitReason.TOKEN_BUDGET, now)

    def turn(self, reason: WaitReason, now: int) -> None:
        """From `now` on, `reason` is what is waited for."""
        if reason is not self.reading.reason:
            self.reading = ClockReading(tuple(self.reading.at(now)), reason, now)


class Passed(NamedTuple):
    """From `at_ns` on a wait is for `reason`; `reading` is the clock's at that time."""

    at_ns: int
    reading: ClockReading
    reason: WaitReason


_MAX_PASSES = 4096


class Passes:
    """The boardings that were later arrivals than every one before: whom they passed is found by arrival."""

    def __init__(self) -> None:
        self._arrivals: list[int] = []
        self._times: list[int] = []
        self._readings: list[ClockReading] = []

    def note(self, arrival_ns: int, clock: WaitClock, now: int) -> None:
        """A request with that arrival boards."""
        if self._arrivals and arrival_ns <= self._arrivals[-1]:
            return
        self._arrivals.append(arrival_ns)
        self._times.append(now)
        self._readings.append(clock.reading)
        if len(self._arrivals) > 2 * _MAX_PASSES:
            for column in (self._arrivals, self._times, self._readings):
                del column[:_MAX_PASSES]

    def find(self, arrival_ns: int, since_ns: int, reason: WaitReason) -> Passed | None:
        """The first boarding after `since_ns` of one that arrived after `arrival_ns`."""
        at = max(bisect_right(self._arrivals, arrival_ns), bisect_right(self._times, since_ns))
        return Passed(self._times[at], self._readings[at], reason) if at < len(self._times) else None


class WaitLedger:
    """One request's waits. It waits while none of its choices holds, or has finished with, a seat."""

    __slots__ = ("_began", "_by_reason", "_own_reason", "since_ns")

    def __init__(self) -> None:
        self._by_reason: list[int] | None = None
        self._began: ClockReading | None = None
        self._own_reason: WaitReason | None = None
        self.since_ns: int | None = None
        """When the running wait began."""

    @property
    def is_waiting(self) -> bool:
        """Whether a wait is running."""
        return self.since_ns is not None

    def begin(self, clock: WaitClock, now: int, own_reason: WaitReason | None = None) -> None:
        """A wait begins; with `own_reason` it is all for that. No effect when one is running."""
        if self.since_ns is None:
            self.since_ns = now
            self._own_reason = own_reason
            self._began = clock.reading if own_reason is None else None

    def finish(self, clock: WaitClock, now: int, passed: Passed | None = None) -> None:
        """The running wait ends. No effect when none is running."""
        if self.since_ns is not None:
            self._by_reason = self.by_reason(clock, now, passed)
            self.since_ns = self._began = self._own_reason = None

    def by_reason(self, clock: WaitClock, now: int, passed: Passed | None = None) -> list[int]:
        """Nanoseconds by WaitReason up to now, the running wait included."""
        waits = list(self._by_reason or _NO_TIME)
        if self.since_ns is None:
            return waits
        if self._own_reason is not None:
            waits[self._own_reason] += now - self.since_ns
        elif self._began is not None:
            until, reading = now, clock.reading
            if passed is not None:
                until, reading = passed.at_ns, passed.reading
                waits[passed.reason] += now - until
            before = self._began.at(self.since_ns)
            for reason, total in enumerate(reading.at(until)):
                waits[reason] += total - before[reason]
        return waits
