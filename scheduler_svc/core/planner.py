"""Makes one plan: who computes how many tokens in the next step.

Running sequences first: each decoding one takes a token, then those with a gap close some of it, then the queue boards.
Decoding sequences are not looked at one by one; only those whose block border or end falls on this step are.
"""

from chairlift.ipc import device
from scheduler_svc.core import boarding, pace, prefix_use, seats
from scheduler_svc.core.chunks import add_chunk, chunk_size
from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.core.emission import apply_transition
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step


def make_plan(state: SchedulerState, now: int) -> device.Plan | None:
    """The next plan, which is then in flight; None when there is nothing to compute."""
    worker = state.worker
    assert worker is not None
    state.draft = step = Step(state.batch.planned + 1, worker.snapshot_needed, now)
    while True:
        _fill(state, step, now)
        if state.batch.num_decodes or step.chunks:
            break
        if not state.probation.is_on:
            assert not step.swap_out, "who gives way does so for somebody who runs"
            state.draft = None
            return None
        # The suspects under test cannot board for want of memory: nobody may stand still for that.
        state.probation.skip_group()
    plan = _seal(state, step, worker.epoch, now)
    state.draft = None
    worker.snapshot_needed = False
    if state.watch is not None:
        state.watch.planned(state, step, worker.epoch, now)
    return plan


def _fill(state: SchedulerState, step: Step, now: int) -> None:
    """Gives the step its work; may be called again with the same step when that left it empty."""
    batch = state.batch
    for sequence in batch.ends_at(step.number):
        seats.retire(state, sequence, now)
    batch.endings.pop(step.number, None)
    state.probation.prune()
    while batch.num_decodes > state.max_num_batched_tokens:
        victim = state.queue.victim(batch.rows.values(), now)
        assert victim is not None
        seats.preempt(state, victim, now)
    _cover_decodes(state, step, now)
    _cover_gaps(state, step, now)
    budget = pace.prefill_budget(state, state.max_num_batched_tokens - batch.num_decodes)
    step.token_budget = budget + batch.num_decodes
    budget = _close_gaps(state, step, budget)
    boarding.board(state, step, budget, now)


def _cover_decodes(state: SchedulerState, step: Step, now: int) -> None:
    """Blocks for the tokens that decoding sequences write in this step, where a new one is needed."""
    batch, at_once = state.batch, prefix_use.tokens_at_once(state)
    for sequence in list(batch.joining):
        if sequence in batch.joining and _cover(state, step, sequence, sequence.scheduled + 1, now):
            _schedule_border(state, sequence, sequence.scheduled, step.number)
    for sequence in batch.borders.pop(step.number, ()):
        if sequence.border_step != step.number or sequence.base is None:
            continue
        position = sequence.base + batch.planned
        block = seats.obtain_block(state, sequence, now)
        if block is not None:
            sequence.blocks.append(block)
            step.appended.append((sequence, block))
            if position % at_once == 0:
                step.bordered.append(sequence)
            _schedule_border(state, sequence, position, step.number)


def _schedule_border(state: SchedulerState, sequence: Sequence, position: int, step: int) -> None:
    """Notes the step that needs it looked at again: its next block border, or its end where that comes first.

    It decodes at `position` in `step` and goes on from there, one position a step.
    """
    request, batch = sequence.request, state.batch
    size = state.hashes.block_size
    border = step + size - position % size
    ending = step + request.output_limit - (position + 1 - request.prompt_len)
    if ending <= border:
        batch.end_at(sequence, ending)
    else:
        batch.border_at(sequence, border)


def _cover_gaps(state: SchedulerState, step: Step, now: int) -> None:
    """After a void step a block may be missing for a token that was confirmed since; boarding covers all others."""
    for sequence in list(state.batch.catching_up):
        if sequence.row is not None:
            _cover(state, step, sequence, sequence.num_known, now)


def _cover(state: SchedulerState, step: Step, sequence: Sequence, num_tokens: int, now: int) -> bool:
    """Makes its table cover so many tokens; False when it had to give way."""
    missing = state.num_blocks_for(num_tokens) - len(sequence.blocks)
    for _ in range(missing):
        block = seats.obtain_block(state, sequence, now)
        if block is None:
            return False
        sequence.blocks.append(block)
        step.appended.append((sequence, block))
    return True


def _close_gaps(state: SchedulerState, step: Step, budget: int) -> int:
    for sequence in state.batch.catching_up:
        if budget <= 0:
            break
        if not state.probation.may_run(sequence):
            continue
        count = chunk_size(state, sequence.num_known - sequence.scheduled, budget)
        if count == 0:
            break
        add_chunk(state, step, sequence, count)
        budget -= count
    return budget


def _shape(state: SchedulerState, step: Step) -> StepShape:
    num_prefill_tokens = num_kv_tokens = 0
    for chunk in step.chunks:
        num_prefill_tokens += chunk.num_tokens
        num_kv_tokens += chunk.sequence.scheduled
    return StepShape(step.num_decodes, num_prefill_tokens, state.batch.num_column_tokens + num_kv_tokens)


def _seal(state: SchedulerState, step: Step, worker_epoch: int, now: int) -> device.Plan:
    """Fixes the decode column, remembers the step as in flight, and writes the plan."""
    batch = state.batch
    decode, transition = batch.settle_column()
    step.decode, step.num_decodes = decode, batch.num_decodes
    if transition is not None:
        if state.in_flight:
            state.in_flight[-1].transition = transition
        else:
            apply_transition(state, transition, now)
    step.finals = batch.ends_at(step.number + 1)
    plan = step.message(worker_epoch, batch.take_left(), decode, batch.rows.values())
    batch.plan_sealed(step.number)
    step.shape = _shape(state, step)
    state.host_pool.release(step.released_host_blocks)
    state.in_flight.append(step)
    for sequence in step.samplers:
        if sequence.ending_step:
            batch.catching_up.pop(sequence, None)
        elif not state.probation.is_on:
            batch.decode_from_next(sequence)
    return plan
