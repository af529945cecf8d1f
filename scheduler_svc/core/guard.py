"""Watches one metric after a change of the knobs, and tells when it has passed its bound.

Measures only while there is something to watch. Percentiles need a few values before they mean anything, so that one
slow request does not take a change back in the middle of its window.
"""

from scheduler_svc.core.revisions import Guard, GuardMetric
from scheduler_svc.core.spread import Spread

_MIN_VALUES = 32
_P99 = 990_000
_NS_PER_S = 1_000_000_000
_CHECKS = 8
"""A window is looked at so many times."""


class GuardWatch:
    """One guard, from the change on."""

    def __init__(self, guard: Guard, revision: int, now: int) -> None:
        self.guard = guard
        self.revision = revision
        """The change that is watched."""
        self.ends_ns = now + guard.window_ns
        self._began_ns = now
        self._values = Spread()
        self._num_good = 0
        self._num_bad = 0
        self._num_preemptions = 0

    def note_first_token(self, ttft_ns: int) -> None:
        """A request has got its first token."""
        if self.guard.metric is GuardMetric.TTFT_P99:
            self._values.add(ttft_ns)

    def note_boarded(self, queue_ns: int) -> None:
        """A request has got its first seat."""
        if self.guard.metric is GuardMetric.QUEUE_P99:
            self._values.add(queue_ns)

    def note_step(self, interval_ns: int, num_streams: int) -> None:
        """So many streams have got a token so long after the one before."""
        if self.guard.metric is GuardMetric.ITL_P99 and num_streams:
            self._values.add(interval_ns, num_streams)

    def note_answer(self, *, is_bad: bool) -> None:
        """A request was refused, or a choice has ended."""
        self._num_bad += is_bad
        self._num_good += not is_bad

    def note_preemption(self) -> None:
        """Somebody gave way."""
        self._num_preemptions += 1

    def next_check_ns(self, now: int) -> int:
        """When to look next, at the end of the window at the latest."""
        return min(now + max(self.guard.window_ns // _CHECKS, 1), self.ends_ns)

    def is_passed(self, now: int) -> bool:
        """Whether the bound has been passed, by what was seen so far."""
        is_over = now >= self.ends_ns
        metric, bound = self.guard.metric, self.guard.bound
        if metric is GuardMetric.PREEMPTION_RATE:
            elapsed = max((self.guard.window_ns if not is_over else now - self._began_ns), 1)
            return self._num_preemptions * 1000 * _NS_PER_S // elapsed > bound
        if metric is GuardMetric.ERROR_RATIO:
            total = self._num_good + self._num_bad
            is_enough = total >= (1 if is_over else _MIN_VALUES)
            return is_enough and self._num_bad * 1_000_000 // total > bound
        is_enough = self._values.count >= (1 if is_over else _MIN_VALUES)
        return is_enough and self._values.quantile(_P99) > bound
