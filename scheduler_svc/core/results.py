"""What a result does: tokens are confirmed, sent and, where they end a choice, end it.

A result is checked whole before any of it is believed: a worker whose result does not fit its plan has failed that
step. For a step in which nothing happens to a row, nothing is done a row.
"""

from array import array

from chairlift.ipc import device
from chairlift.ipc.common import FinishReason
from chairlift.ipc.tokens import ColumnError, unpack_u32
from scheduler_svc.core import ends, prefix_use, recovery
from scheduler_svc.core.emission import StepEmission, apply_transition
from scheduler_svc.core.ends import Cause
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step

_END_REASONS: dict[int, FinishReason] = {
    device.EndKind.EOS: FinishReason.EOS,
    device.EndKind.STOP_TOKEN: FinishReason.STOP_TOKEN,
}
_INDEX_STEPS = 32
"""Results over which the indexing of blocks is spread when many sequences are due on one step."""
_MIN_INDEXED = 4


class _BadResult(ValueError):
    """A result that does not fit its plan."""


def step_done(state: SchedulerState, message: device.StepDone, now: int) -> None:
    """Takes in the result of the oldest plan in flight; any other is counted and dropped."""
    step = _expected(state, message.worker_epoch, message.step)
    if step is None:
        return
    try:
        column = _checked_column(state, step, message.sampled)
        found_ends = _checked_ends(step, message.ends)
        _check_logprobs(step, message)
    except (_BadResult, ColumnError):
        recovery.fail_step(state, step, now)
        return
    state.in_flight.popleft()
    num_discarded = state.counters.discarded_rows
    _confirm(state, step, column, message, found_ends, now)
    state.counters.steps += 1
    if state.watch is not None:
        num_discarded = state.counters.discarded_rows - num_discarded
        state.watch.completed(step.number, state.counters.steps, message.device_ns, num_discarded, now)
    if state.guard_watch is not None:
        state.guard_watch.note_step(now - state.last_result_ns, step.num_decodes)
    state.last_result_ns = now
    took_ns = message.device_ns + message.host_ns
    if step.num_swapped:
        state.swap_cost.observe(state.cost_model.costs, step.shape, step.num_swapped, took_ns)
    else:
        state.cost_model.observe(step.shape, took_ns)
    state.probation.passed()


def _expected(state: SchedulerState, worker_epoch: int, number: int) -> Step | None:
    worker = state.worker
    if worker is None or not worker.is_up or worker_epoch != worker.epoch or not state.in_flight:
        state.counters.stale_results += 1
        return None
    step = state.in_flight[0]
    if number != step.number:
        state.counters.stale_results += 1
        return None
    return step


def _checked_column(state: SchedulerState, step: Step, sampled: bytes) -> "array[int]":
    column = unpack_u32(sampled)
    if len(column) != step.num_sampled:
        raise _BadResult(f"{len(column)} ids for {step.num_sampled} rows that sample")
    if column and max(column) >= state.geometry.vocab_size:
        raise _BadResult("a sampled id is not in the vocabulary")
    return column


def _checked_ends(step: Step, packed: bytes) -> list[tuple[int, FinishReason]]:
    if not packed:
        return []
    pairs = unpack_u32(packed)
    if len(pairs) % 2:
        raise _BadResult("ends are pairs")
    found = []
    for at in range(0, len(pairs), 2):
        index, kind = pairs[at], pairs[at + 1]
        reason = _END_REASONS.get(kind)
        if index >= step.num_sampled or reason is None:
            raise _BadResult("an end that no row has")
        found.append((index, reason))
    return found


def _check_logprobs(step: Step, message: device.StepDone) -> None:
    for row in message.logprobs:
        if not 0 <= row.index < step.num_sampled or len(row.token_ids) != len(row.logprobs) or not row.token_ids:
            raise _BadResult("log-probabilities that no row has")
        if len(row.token_ids) % 4:
            raise _BadResult("log-probabilities that are no column")
    if message.prompt_logprobs:
        rows = {chunk.row: chunk.sequence for chunk in step.chunks}
        for part in message.prompt_logprobs:
            _check_prompt_logprobs(rows.get(part.row), part)


def _check_prompt_logprobs(sequence: Sequence | None, part: device.PromptLogprobs) -> None:
    if sequence is None or part.width < 1 or part.offset < 1:
        raise _BadResult("prompt log-probabilities that no row has")
    if len(part.token_ids) != len(part.logprobs) or len(part.token_ids) % (4 * part.width):
        raise _BadResult("prompt log-probabilities that are no columns")
    if part.offset + len(part.token_ids) // (4 * part.width) > sequence.request.prompt_len:
        raise _BadResult("prompt log-probabilities beyond the prompt")


def _confirm(
    state: SchedulerState,
    step: Step,
    column: "array[int]",
    message: device.StepDone,
    found_ends: list[tuple[int, FinishReason]],
    now: int,
) -> None:
    confirmed = state.confirmed
    emission = StepEmission(state)
    confirmed.add(column, keep=prefix_use.tokens_at_once(state) + _INDEX_STEPS + 3)
    state.counters.discarded_rows += confirmed.num_ghosts
    state.counters.output_tokens += step.num_decodes - confirmed.num_ghosts
    _confirm_chunks(state, step, column, emission, now)
    for row in message.logprobs:
        _add_logprobs(state, step, row, emission)
    rows = {chunk.row: chunk.sequence for chunk in step.chunks} if message.prompt_logprobs else {}
    for part in message.prompt_logprobs:
        if not rows[part.row].is_ended:
            emission.add_prompt_logprobs(rows[part.row].request, part)
    emission.send_column(column, message.sampled)
    for index, reason in found_ends:
        sequence = _sampler(state, step, index)
        if not sequence.is_ended:
            ends.end_sequence(state, sequence, Cause(reason, stop_token_id=column[index]), now)
    for sequence in step.finals:
        if not sequence.is_ended:
            ends.end_sequence(state, sequence, Cause(sequence.request.limit_reason), now)
    state.full_blocks.extend(step.bordered)
    _index_full_blocks(state)
    if step.transition is not None:
        apply_transition(state, step.transition, now)


def _index_full_blocks(state: SchedulerState) -> None:
    """Makes blocks findable that decoding has filled; when very many fall full at once, over the next results."""
    confirmed, waiting = state.confirmed, state.full_blocks
    left = max(_MIN_INDEXED, -(-len(confirmed.members) // _INDEX_STEPS))
    while waiting and left:
        sequence = waiting.popleft()
        # Whoever is in the column has computed all that it knows but the newest; others are seen to elsewhere, and
        # do not count: those that stay must be settled before their columns are dropped.
        if sequence.confirmed_at is not None and sequence.row is not None:
            left -= 1
            confirmed.settle(sequence)
            sequence.computed = sequence.request.prompt_len + len(sequence.outputs) - 1
            prefix_use.index_confirmed(state, sequence)


def _confirm_chunks(state: SchedulerState, step: Step, column: "array[int]", emission: StepEmission, now: int) -> None:
    for chunk in step.chunks:
        sequence = chunk.sequence
        if sequence.is_ended:
            state.counters.discarded_rows += 1
            continue
        sequence.num_chunks += 1
        sequence.num_rode += 1
        if sequence.row is not None:
            sequence.request.tenant.settle_bucket(now, state.confirmed.step)
            _charge_prompt(sequence, sequence.computed, sequence.computed + chunk.num_tokens)
            sequence.computed += chunk.num_tokens
    for at, sequence in enumerate(step.samplers, start=step.num_decodes):
        tenant = sequence.request.tenant
        tenant.settle_bucket(now, state.confirmed.step)
        tenant.add_output(1)
        if sequence.is_ended:
            continue
        token = column[at]
        emission.add_token(sequence, token)
        if not sequence.outputs:
            sequence.first_token_ns = now
            state.forecast.note_first_token(sequence.request, now)
            if state.guard_watch is not None:
                state.guard_watch.note_first_token(now - sequence.request.arrival_ns)
        sequence.outputs.append(token)
        sequence.token_step = step.number
        state.counters.output_tokens += 1


def _charge_prompt(sequence: Sequence, start: int, end: int) -> None:
    """Its tenant is charged for the prompt tokens of ``[start, end)`` that it has not been charged for before."""
    request, tenant = sequence.request, sequence.request.tenant
    end = min(end, request.prompt_len)
    charge = end - max(start, request.charged_prompt)
    if charge > 0:
        request.charged_prompt = end
        tenant.input_tokens += charge
        settled = min(charge, sequence.pending_input)
        sequence.pending_input -= settled
        tenant.pending_input -= settled


def _sampler(state: SchedulerState, step: Step, index: int) -> Sequence:
    if index < step.num_decodes:
        return state.confirmed.members[index]
    return step.samplers[index - step.num_decodes]


def _add_logprobs(state: SchedulerState, step: Step, row: device.RowLogprobs, emission: StepEmission) -> None:
    sequence = _sampler(state, step, row.index)
    if not sequence.is_ended:
        state.settle(sequence)
        emission.add_logprobs(sequence, len(sequence.outputs) - 1, row)
