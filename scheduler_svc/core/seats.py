"""Giving seats and blocks, and taking them back: the only code that moves a sequence into and out of the batch.

Every way out of the batch (end, retirement, preemption, a void step) gives back row and blocks at once: the device runs
plans in order, so what step N still uses may be given away from the next plan made on.
"""

from array import array

from chairlift.ipc.common import WaitReason
from scheduler_svc.core import prefix_use, swapping
from scheduler_svc.core.ledger import Passed
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState

_SEATED = (SequenceState.RUNNING, SequenceState.FINISHING)


def take_seat(
    state: SchedulerState, sequence: Sequence, blocks: "array[int]", computed: int, step: int, now: int
) -> None:
    """A waiting sequence boards in `step` with these blocks, whose first `computed` tokens are there already."""
    request, tenant = sequence.request, sequence.request.tenant
    state.queue.remove(sequence, now)
    sequence.move(SequenceState.RUNNING)
    state.batch.seat(sequence)
    sequence.blocks = blocks
    sequence.computed = sequence.scheduled = computed
    sequence.boarded_step = step
    sequence.blocked_ns = None
    if state.watch is not None:
        state.watch.note_boarded(sequence)
    tenant.num_seated += 1
    request.charged_prompt = max(request.charged_prompt, computed)
    sequence.pending_input = max(request.prompt_len - request.charged_prompt, 0)
    tenant.pending_input += sequence.pending_input
    if request.first_boarded_ns is None:
        request.first_boarded_ns = now
        request.cached_tokens = computed
        if state.guard_watch is not None:
            state.guard_watch.note_boarded(now - request.arrival_ns)
        state.num_queued_requests -= 1
        tenant.num_queued_requests -= 1
        state.counters.prompt_tokens += request.prompt_len
        state.counters.cached_tokens += computed
    if state.queue.passed_reason is not None:
        state.passes.note(request.arrival_ns, state.clock, now)
    finish_wait(state, request, now)


def give_back(state: SchedulerState, sequence: Sequence) -> None:
    """Takes row and blocks from a running sequence; its confirmed full blocks stay findable.

    Whoever calls this offers the tenant's parked sequences the free seat afterwards.
    """
    tenant = sequence.request.tenant
    tenant.num_seated -= 1
    tenant.pending_input -= sequence.pending_input
    sequence.pending_input = 0
    prefix_use.index_confirmed(state, sequence)
    state.batch.unseat(sequence)
    state.pool.release(reversed(sequence.blocks))
    sequence.blocks = array("I")
    sequence.num_indexed = 0
    sequence.border_step = sequence.ending_step = 0
    sequence.scheduled = sequence.computed = 0


def retire(state: SchedulerState, sequence: Sequence, now: int) -> None:
    """Its last token is planned: others may have its seat and blocks from this plan on."""
    state.settle(sequence)
    give_back(state, sequence)
    sequence.move(SequenceState.FINISHING)
    state.queue.offer_parked(sequence.request.tenant, now)


def send_back(
    state: SchedulerState,
    sequence: Sequence,
    reason: WaitReason,
    now: int,
    to: SequenceState = SequenceState.PREEMPTED,
) -> None:
    """A running or finishing sequence waits again, at its original place."""
    state.settle(sequence)
    if sequence.row is not None:
        give_back(state, sequence)
    sequence.move(to)
    if state.watch is not None:
        state.watch.note_displaced(sequence, is_swapped=to is SequenceState.SWAPPED)
    state.queue.add(sequence, now)
    state.queue.offer_parked(sequence.request.tenant, now)
    note_wait(state, sequence.request, now, reason)


def note_wait(state: SchedulerState, request: Request, now: int, reason: WaitReason | None = None) -> None:
    """The request's wait begins, if none of its choices has a seat any more; for `reason`, or what the queue's is."""
    if not any(sequence.state in _SEATED for sequence in request.sequences):
        request.waits.begin(state.clock, now, reason)


def finish_wait(state: SchedulerState, request: Request, now: int) -> None:
    """The request's wait is over: a choice has a seat, or none is left."""
    request.waits.finish(state.clock, now, passed(state, request, now))


def passed(state: SchedulerState, request: Request, now: int) -> Passed | None:
    """Since when a running wait is owed to the policy's order."""
    reason, since = state.queue.passed_reason, request.waits.since_ns
    if reason is None or since is None:
        return None
    return state.passes.find(request.arrival_ns, since, reason)


def preempt(state: SchedulerState, sequence: Sequence, now: int) -> None:
    """Memory is short: the sequence gives way; what it has computed is copied to the host, or computed again."""
    sequence.preemptions += 1
    sequence.gave_way_step = state.batch.planned + 1
    state.counters.preemptions += 1
    if state.guard_watch is not None:
        state.guard_watch.note_preemption()
    state.settle(sequence)
    is_swapped = swapping.swap_out(state, sequence)
    send_back(
        state, sequence, WaitReason.PREEMPTED, now, SequenceState.SWAPPED if is_swapped else SequenceState.PREEMPTED
    )


def obtain_block(state: SchedulerState, sequence: Sequence, now: int) -> int | None:
    """One more block for a running sequence, at the cost of others if need be; None when it had to give way itself."""
    while (block := state.pool.try_take()) is None:
        victim = state.queue.victim(state.batch.rows.values(), now)
        assert victim is not None, "a sequence that runs alone fits: the door has seen to that"
        preempt(state, victim, now)
        if victim is sequence:
            return None
    return block
