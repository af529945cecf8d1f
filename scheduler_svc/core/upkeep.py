"""What is not about one request: timers, draining, and the replica's account of itself."""

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from scheduler_svc.core import attachments, ends, reconfigure, recovery
from scheduler_svc.core.ends import RETRY_NS, Cause
from scheduler_svc.core.sequence import SequenceState
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import Timer, TimerKind

DEADLINE = Cause(FinishReason.DEADLINE, failure=Reason.DEADLINE, message="the request's deadline has passed")
QUEUE_TIMEOUT = Cause(
    FinishReason.DEADLINE, failure=Reason.QUEUE_TIMEOUT, message="the request waited longer than its queue_timeout"
)
DRAINED = Cause(FinishReason.ERROR, failure=Reason.DRAINING, message="this replica has ended", retry_after_ns=RETRY_NS)


def expire(state: SchedulerState, now: int) -> None:
    """Handles every timer that is due."""
    timers = state.timers
    timers.woken(now)
    while (timer := timers.due(now)) is not None:
        _fire(state, timer, now)
    if timers.needs_sweep():
        timers.sweep(lambda timer: timer.number == 0 or timer.number in state.by_number)


def _fire(state: SchedulerState, timer: Timer, now: int) -> None:
    request = state.by_number.get(timer.number)
    match timer.kind:
        case TimerKind.DEADLINE if request is not None:
            ends.end_request(state, request, DEADLINE, now)
        case TimerKind.QUEUE_TIMEOUT if request is not None and request.first_boarded_ns is None:
            ends.end_request(state, request, QUEUE_TIMEOUT, now)
        case TimerKind.DETACHED if request is not None:
            attachments.end_if_still_detached(state, request, now)
        case TimerKind.KEPT if request is not None and request.is_ended and request.kept_until_ns <= now:
            ends.drop_output(request)
        case TimerKind.WORKER_GRACE:
            recovery.give_up_on_worker(state, now)
        case TimerKind.GUARD:
            reconfigure.check_guard(state, now)
        case TimerKind.DRAIN if state.is_draining and state.drain_deadline_ns == timer.at_ns:
            for living in list(state.requests.values()):
                ends.end_request(state, living, DRAINED, now)


def drain(state: SchedulerState, undrain: bool, deadline_in_ns: int | None, now: int) -> None:
    """Stops, or resumes, letting new requests in."""
    state.is_draining = not undrain
    state.drain_deadline_ns = None
    if not undrain and deadline_in_ns is not None:
        state.drain_deadline_ns = now + max(deadline_in_ns, 0)
        state.timers.set(state.drain_deadline_ns, TimerKind.DRAIN)


def load(state: SchedulerState) -> front.Load:
    """Counts of this moment and totals since the start."""
    pool, counters = state.pool, state.counters
    return front.Load(
        running=len(state.batch.rows),
        waiting=len(state.queue),
        preempted=state.queue.num_preempted,
        queued_tokens=state.queue.num_tokens,
        blocks_total=pool.num_blocks,
        blocks_free=pool.num_blank,
        blocks_cached=pool.num_cached,
        blocks_used=pool.num_used,
        steps=counters.steps,
        preemptions=counters.preemptions,
        requests_accepted=counters.accepted,
        requests_refused=counters.refused,
        requests_ended=counters.ended,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        output_tokens=counters.output_tokens,
        attached_gateways=len(state.gateways),
        discarded_rows=counters.discarded_rows,
        swapped=_num_swapped(state),
        host_blocks_total=state.host_pool.num_blocks,
        host_blocks_used=state.host_pool.num_blocks - state.host_pool.num_free,
        config_revision=state.revisions.current.number,
    )


def _num_swapped(state: SchedulerState) -> int:
    if state.host_pool.num_free == state.host_pool.num_blocks:
        return 0
    return sum(sequence.state is SequenceState.SWAPPED for sequence in state.queue)


def limits(state: SchedulerState) -> front.ReplicaLimits:
    """Limits in force."""
    has_worker = state.worker is not None
    return front.ReplicaLimits(
        max_num_seqs=state.max_num_seqs if has_worker else 0,
        max_num_batched_tokens=state.max_num_batched_tokens if has_worker else 0,
        max_num_queued_reqs=state.config.max_num_queued_reqs,
        max_num_queued_tokens=state.config.max_num_queued_tokens,
        block_size=state.geometry.block_size if has_worker else 0,
    )


def model(state: SchedulerState) -> front.ModelInfo | None:
    """What the worker serves, or served last."""
    if state.worker is None:
        return None
    geometry = state.worker.geometry
    return front.ModelInfo(
        model=geometry.model,
        fingerprint=geometry.fingerprint,
        vocab_size=geometry.vocab_size,
        max_model_len=geometry.max_model_len,
        eos_token_ids=geometry.eos_token_ids,
        kv_capacity_tokens=geometry.num_blocks * geometry.block_size,
        dtype=geometry.dtype,
        quantization=geometry.quantization,
        device=geometry.device,
        deterministic=geometry.deterministic,
        num_parameters=geometry.num_parameters,
    )
