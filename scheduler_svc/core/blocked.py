"""Candidates that there is no room for: what is remembered of them from plan to plan.

Bounds how long smaller requests pass one, and keeps a plan from looking at the same candidates, or for the same
victims, again while nothing has become better for them.
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
        self._num_obtainable = 0
        self._num_enqueued: int | None = None

    def may_be_passed(self, state: "SchedulerState", candidate: Sequence, now: int, *, is_head: bool) -> bool:
        """Whether others may board before this one, which has no room. Its time runs from the first such plan until
        it boards, whoever stands before it meanwhile. `is_head`: nobody without room stands before it."""
        if is_head and candidate is not self._head:
            self._head = candidate
            self._num_enqueued = None
        if candidate.blocked_ns is None:
            candidate.blocked_ns = now
        return now - candidate.blocked_ns < state.config.max_head_bypass_ns

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
