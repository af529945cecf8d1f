"""Failures of the device: a step that gave no result, a worker that forgot, went or came.

What was planned and not confirmed is void: `scheduled` rolls back to `computed`, blocks that a void step was to fill
are no longer findable, sequences that boarded in a void step wait again at their place. Nothing emitted changes.
"""

from chairlift.ipc import device
from chairlift.ipc.common import FinishReason, Reason, WaitReason
from chairlift.ipc.tokens import ColumnError, unpack_u32
from scheduler_svc.core import admission, ends, seats, swapping
from scheduler_svc.core.batch import Batch
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.emission import stop_sending
from scheduler_svc.core.ends import RETRY_NS, Cause
from scheduler_svc.core.host_pool import HostPool, SwapCost
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState, Worker
from scheduler_svc.core.steps import Step
from scheduler_svc.core.timers import TimerKind

STEP_FAILED = Cause(FinishReason.ERROR, failure=Reason.STEP_FAILED, message="the device could not compute this choice")
KILLS_WORKER = Cause(
    FinishReason.ERROR, failure=Reason.STEP_FAILED, message="the device process died each time it computed this choice"
)
NO_WORKER = Cause(
    FinishReason.ERROR, failure=Reason.NO_WORKER, message="no worker came back in time", retry_after_ns=RETRY_NS
)


def step_failed(state: SchedulerState, message: device.StepFailed, now: int) -> None:
    """The worker could not compute a step and refuses later ones until a snapshot."""
    worker = state.worker
    if worker is not None and worker.is_up and worker.epoch == message.worker_epoch:
        for step in state.in_flight:
            if step.number == message.step:
                fail_step(state, step, now, message.rows)
                return
    state.counters.stale_results += 1


def fail_step(state: SchedulerState, step: Step, now: int, packed_rows: bytes = b"") -> None:
    """Voids what is in flight; ends those who are at fault, or suspects everyone who was in the step."""
    state.counters.failed_steps += 1
    members = [sequence for sequence in state.confirmed.members if not sequence.is_ended]
    members += [chunk.sequence for chunk in step.chunks if not chunk.sequence.is_ended]
    guilty = _named(state, step, packed_rows)
    newcomers = [one for one in members if one.boarded_step == step.number]
    _void(state, now)
    if not guilty:
        veterans = [one for one in members if one.boarded_step != step.number]
        guilty = state.probation.failed(veterans, newcomers)
    for sequence in guilty:
        ends.end_sequence(state, sequence, STEP_FAILED, now)


def _named(state: SchedulerState, step: Step, packed_rows: bytes) -> list[Sequence]:
    """Who had these rows in the step, if they can be told: some may have given them back since."""
    if step is not state.in_flight[0]:
        return []
    try:
        rows = set(unpack_u32(packed_rows))
    except ColumnError:
        return []
    seats = [*zip(unpack_u32(step.decode), state.confirmed.members, strict=True)]
    seats += [(chunk.row, chunk.sequence) for chunk in step.chunks]
    return [one for row, one in seats if row in rows and not one.is_ended]


def snapshot_needed(state: SchedulerState, message: device.NeedSnapshot, now: int) -> None:
    """The worker missed a plan: what is in flight is void, and nobody is to blame."""
    worker = state.worker
    if worker is None or not worker.is_up or worker.epoch != message.worker_epoch:
        state.counters.stale_results += 1
        return
    _void(state, now)


def _void(state: SchedulerState, now: int) -> None:
    """Everything planned and not confirmed did not happen; the next plan boards the whole batch anew."""
    batch, steps = state.batch, list(state.in_flight)
    first = steps[0].number if steps else batch.planned + 1
    _unindex_planned(state, steps)
    _settle_all(state, now)
    for sequence in list(batch.rows.values()):
        if sequence.boarded_step >= first:
            seats.send_back(state, sequence, WaitReason.PREEMPTED, now)
        else:
            sequence.scheduled = sequence.computed
            sequence.num_indexed = min(sequence.num_indexed, sequence.computed // state.hashes.block_size)
    _call_back_finishing(state, steps, WaitReason.PREEMPTED, now)
    swapping.drop_copies(state, since=first)
    batch.void()
    state.blocked.clear()
    if state.worker is not None:
        state.worker.snapshot_needed = True


def _unindex_planned(state: SchedulerState, steps: list[Step]) -> None:
    for step in steps:
        for block in step.indexed:
            state.pool.unindex(block)


def _settle_all(state: SchedulerState, now: int) -> None:
    """Every sequence has its confirmed tokens, and none is in the column any more."""
    for sequence in state.confirmed.members:
        state.settle(sequence)
        stop_sending(state, sequence)
        sequence.request.tenant.settle_bucket(now, state.confirmed.step)
        sequence.request.tenant.change_rows(-1, state.confirmed.step)
    state.full_blocks.clear()
    state.confirmed.clear(state.batch.planned)
    state.in_flight.clear()


def _call_back_finishing(state: SchedulerState, steps: list[Step], reason: WaitReason, now: int) -> None:
    for step in steps:
        for sequence in step.finals:
            if sequence.is_finishing:
                seats.send_back(state, sequence, reason, now)


def worker_lost(state: SchedulerState, worker_epoch: int, now: int) -> None:
    """The KV cache is out of reach, and what was in flight is void. Everyone waits for this worker or a successor."""
    worker = state.worker
    if worker is None or not worker.is_up or worker.epoch != worker_epoch:
        return
    steps = list(state.in_flight)
    riders = _riders(state, steps)
    _unindex_planned(state, steps)
    _settle_all(state, now)
    state.probation.worker_lost(riders)
    for sequence in list(state.batch.rows.values()):
        seats.send_back(state, sequence, WaitReason.WORKER_LOST, now)
    _call_back_finishing(state, steps, WaitReason.WORKER_LOST, now)
    swapping.drop_copies(state, since=0)
    state.batch.void()
    # Nobody uses a block any more; what is indexed holds until it is known who comes.
    worker.lost_pool, state.pool = state.pool, BlockPool(0)
    state.host_pool = HostPool(0)
    state.blocked.clear()
    worker.is_up = False
    worker.lost_ns = now
    state.clock.turn(WaitReason.WORKER_LOST, now)
    state.timers.set(now + state.config.worker_restart_grace_ns, TimerKind.WORKER_GRACE)


def _riders(state: SchedulerState, steps: list[Step]) -> list[tuple[Sequence, int]]:
    """Who is in flight, with the tokens that plans cover of it; nobody twice."""
    if not steps:
        return []
    members = dict.fromkeys(state.confirmed.members)
    for step in steps:
        if step.transition is not None:
            members.update(dict.fromkeys(step.transition.joined))
        members.update(dict.fromkeys(chunk.sequence for chunk in step.chunks))
    return [(one, state.batch.num_scheduled(one)) for one in members if not one.is_ended]


def worker_up(state: SchedulerState, worker_epoch: int, geometry: device.Geometry, now: int) -> None:
    """A worker takes plans, beginning with a snapshot. Its KV cache is empty, unless it is the one that was lost."""
    worker = state.worker
    if worker is not None and worker.is_up:
        if worker.epoch == worker_epoch:
            return
        worker_lost(state, worker.epoch, now)
    is_another = worker is None or worker.epoch != worker_epoch
    guilty = state.probation.worker_came(is_another)
    kept = None if worker is None or is_another or worker.geometry != geometry else worker.lost_pool
    if geometry.block_size != state.hashes.block_size:
        state.hashes = state.make_hashes(geometry.block_size)
        for request in state.requests.values():
            request.prompt_hashes = b""
            for sequence in request.sequences:
                sequence.tail_hashes = b""
    state.worker = Worker(worker_epoch, geometry)
    state.pool = kept or BlockPool(geometry.num_blocks)
    state.host_pool = HostPool(geometry.num_host_blocks)
    state.swap_cost = SwapCost(geometry.kv_bytes_per_token * geometry.block_size)
    state.batch = Batch(geometry.max_num_seqs, state.batch.planned)
    state.clock.turn(WaitReason.TOKEN_BUDGET, now)
    for sequence, num_deaths in guilty:
        state.counters.excused_losses += num_deaths
        ends.end_sequence(state, sequence, KILLS_WORKER, now)
    for request in list(state.requests.values()):
        limit = admission.output_limit(state, request.prompt_len, request.max_tokens)
        if isinstance(limit, admission.Rejection):
            ends.end_request(
                state, request, Cause(FinishReason.ERROR, failure=limit.reason, message=limit.message), now
            )
        else:
            request.output_limit, request.limit_reason = limit.num_tokens, limit.reason
            _end_complete(state, request, now)


def _end_complete(state: SchedulerState, request: Request, now: int) -> None:
    """The successor may hold less than the worker before it."""
    for sequence in request.sequences:
        if not sequence.is_ended and len(sequence.outputs) >= request.output_limit:
            ends.end_sequence(state, sequence, Cause(request.limit_reason), now)


def give_up_on_worker(state: SchedulerState, now: int) -> None:
    """No worker came back within the grace: nobody waits for ever."""
    worker = state.worker
    if worker is None or worker.is_up or now < worker.lost_ns + state.config.worker_restart_grace_ns:
        return
    worker.is_abandoned = True
    for request in list(state.requests.values()):
        ends.end_request(state, request, NO_WORKER, now)
