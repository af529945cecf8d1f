"""The candidate at the head of the queue that there is no room for: what is remembered of it from plan to plan.

Bounds how long smaller requests pass it, and keeps a plan from looking at the same candidates, or for the same victims,
again while nothing has become better for them.
"""

from typing import TYPE_CHECKING

from scheduler_svc.core.sequence import Sequence

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState


_LOOK_AGAIN_NS = 100_000_000
"""Standing changes with time: how long it may take to be seen while nobody boards or leaves."""


class Blocked:
    """One head at a time."""

    def __init__(self) -> None:
        self._head: Sequence | None = None
        self._since_ns = 0
        self._num_obtainable = 0
        self._num_enqueued: int | None = None

    def may_be_passed(self, state: "SchedulerState", head: Sequence, now: int) -> bool:
        """Whether others may board before this head, which has no room; its time runs from the first such plan."""
        if head is not self._head:
            self._head = head
            self._since_ns = now
            self._num_enqueued = None
        return now - self._since_ns < state.config.max_head_bypass_ns

    def remember(self, state: "SchedulerState") -> None:
        """Nobody that was looked at has room now."""
        self._num_obtainable = state.pool.num_obtainable
        self._num_enqueued = state.queue.num_enqueued

    def is_unchanged(self, state: "SchedulerState", head: Sequence) -> bool:
        """Whether looking again is pointless: same head, no block more, nobody new, and the batch goes on."""
        return (
            head is self._head
            and state.queue.num_enqueued == self._num_enqueued
            and state.pool.num_obtainable <= self._num_obtainable
            and bool(state.batch.rows)
        )

    def clear(self) -> None:
        """Memory or knobs are other ones."""
        self._head = None
        self._num_enqueued = None


class VainSearch:
    """Remembers when looking for someone to give way was in vain, so that a plan does not search again for nothing."""

    def __init__(self) -> None:
        self._head: Sequence | None = None
        self._changes = 0
        self._looked_ns = 0

    def is_same(self, state: "SchedulerState", head: Sequence, now: int) -> bool:
        """Whether the same batch was searched for this candidate a moment ago."""
        is_same = head is self._head and state.batch.num_changes == self._changes
        return is_same and now - self._looked_ns < _LOOK_AGAIN_NS

    def remember(self, state: "SchedulerState", head: Sequence, now: int) -> None:
        """Nobody gives way to it now."""
        self._head, self._changes, self._looked_ns = head, state.batch.num_changes, now
