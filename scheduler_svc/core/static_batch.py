"""Static batching, the textbook's baseline, in the same engine: a batch is formed, and nobody boards until all of it
has ended.

A batch forms from the head of the queue when it is full or when its first has waited long enough. Its members then
board as the steps' budgets and memory allow; one that gives way comes back within its own batch.
"""

from collections.abc import Iterator
from itertools import islice

from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import TimerKind

_DONE = (SequenceState.FINISHING, SequenceState.ENDED)


def candidates(state: SchedulerState, now: int) -> Iterator[Sequence]:
    """Members of the batch under way that are not seated, or those of a new one; nobody while one must wait."""
    members = [member for member in state.static_members if member.state not in _DONE]
    if not members:
        members = _form(state, now)
    state.static_members = members
    for member in members:
        if member.is_waiting:
            yield member


def _form(state: SchedulerState, now: int) -> list[Sequence]:
    size = min(state.config.static_batch_size or state.max_num_seqs, state.max_num_seqs)
    members = list(islice(state.queue.candidates(now), size))
    if len(members) < size:
        full_at = min(member.request.arrival_ns for member in members) + state.config.static_batch_wait_ns
        if now < full_at:
            if full_at != state.batch_wait_ns:
                state.batch_wait_ns = full_at
                state.timers.set(full_at, TimerKind.BATCH_WAIT)
            return []
    return members
