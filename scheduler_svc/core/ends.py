"""How choices and requests end: exactly one Finished a choice, and what is kept of a request afterwards.

Every end of every kind goes through `end_sequence`. An ended request's output stays for who may attach, and its account
for Explain; both are bounded in number and time.
"""

from array import array

import msgspec

from chairlift.ipc.common import FinishReason, Reason, SamplingParams
from scheduler_svc.core import emission, swapping
from scheduler_svc.core.request import Request
from scheduler_svc.core.seats import finish_wait, give_back, note_wait
from scheduler_svc.core.sequence import Sequence, SequenceEnd, SequenceState
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import TimerKind

RETRY_NS = 1_000_000_000
"""When to come again, where nothing better is known."""


class Cause(msgspec.Struct, frozen=True):
    """Why something ends now."""

    reason: FinishReason
    stop_token_id: int | None = None
    failure: Reason | None = None
    message: str = ""
    retry_after_ns: int | None = None


def end_sequence(
    state: SchedulerState, sequence: Sequence, cause: Cause, now: int, num_tokens: int | None = None
) -> None:
    """The choice ends now, whatever it was doing; seat, blocks and place in the queue are free for the next plan.

    Its record is cut after `num_tokens` output tokens where that is given and less than there are.
    """
    state.settle(sequence)
    request = sequence.request
    match sequence.state:
        case SequenceState.RUNNING:
            give_back(state, sequence)
        case SequenceState.WAITING | SequenceState.PREEMPTED | SequenceState.SWAPPED:
            state.queue.remove(sequence, now)
            swapping.drop_copy(state, sequence)
    emission.stop_sending(state, sequence)
    sequence.move(SequenceState.ENDED)
    if sequence.confirmed_at is not None:
        state.confirmed.num_ghosts += 1
    known = len(sequence.outputs)
    _close(sequence, cause, now, known if num_tokens is None else min(num_tokens, known))
    if cause.failure is None:
        num_computed = request.prompt_len - request.cached_tokens
        is_by_length = cause.reason is FinishReason.LENGTH
        state.forecast.note_end(len(sequence.outputs), num_computed, is_by_length=is_by_length)
    if state.watch is not None and sequence.boarded_step:
        state.watch.note_departed(sequence, cause.reason)
    if state.guard_watch is not None:
        state.guard_watch.note_answer(is_bad=cause.reason is FinishReason.ERROR)
    request.num_unended -= 1
    if request.gateway is not None:
        state.emit(request.gateway, emission.finished(sequence, is_last=request.is_ended))
    state.queue.offer_parked(request.tenant, now)
    if request.is_ended:
        _end_request(state, request, now)
    else:
        note_wait(state, request, now)


def end_before(state: SchedulerState, sequence: Sequence, now: int) -> None:
    """The choice had its end in an earlier attempt: it never waits here, and nobody is told now.

    Where its last token does not tell why it ended, a stop string did.
    """
    cause = cause_in_outputs(state, sequence) or Cause(FinishReason.STOP_STRING)
    sequence.move(SequenceState.ENDED)
    _close(sequence, cause, now, len(sequence.outputs))


def cause_in_outputs(state: SchedulerState, sequence: Sequence) -> Cause | None:
    """Why a choice with the output it has is complete; None when it is not."""
    request, outputs = sequence.request, sequence.outputs
    if not outputs:
        return None
    last, sampling = outputs[-1], request.sampling
    if len(outputs) > sampling.min_tokens:
        if last in state.geometry.eos_token_ids and not sampling.ignore_eos:
            return Cause(FinishReason.EOS, stop_token_id=last)
        if last in sampling.stop_token_ids:
            return Cause(FinishReason.STOP_TOKEN, stop_token_id=last)
    return Cause(request.limit_reason) if len(outputs) >= request.output_limit else None


def _close(sequence: Sequence, cause: Cause, now: int, num_tokens: int) -> None:
    sequence.end = SequenceEnd(
        reason=cause.reason,
        num_tokens=num_tokens,
        ended_ns=now,
        stop_token_id=cause.stop_token_id,
        failure_reason=cause.failure or "",
        failure_message=cause.message,
        retry_after_ns=cause.retry_after_ns,
    )
    _cut(sequence, num_tokens)


def cut_ended(sequence: Sequence, reason: FinishReason, num_tokens: int) -> None:
    """A choice that has ended is found to end earlier, at a stop string: the record says so to who attaches later."""
    assert sequence.end is not None
    sequence.end = msgspec.structs.replace(
        sequence.end, reason=reason, num_tokens=min(num_tokens, sequence.end.num_tokens), stop_token_id=None
    )
    _cut(sequence, sequence.end.num_tokens)


def _cut(sequence: Sequence, num_tokens: int) -> None:
    del sequence.outputs[num_tokens:]
    if sequence.output_logprobs is not None:
        sequence.output_logprobs = [entry for entry in sequence.output_logprobs if entry.offset < num_tokens]


def end_request(state: SchedulerState, request: Request, cause: Cause, now: int) -> None:
    """Every choice that has no end yet ends now."""
    for sequence in request.sequences:
        if not sequence.is_ended:
            end_sequence(state, sequence, cause, now)


def _end_request(state: SchedulerState, request: Request, now: int) -> None:
    """It leaves the living; its account and, for a while, its output are kept."""
    state.counters.ended += 1
    if request.first_boarded_ns is None:
        state.num_queued_requests -= 1
        request.tenant.num_queued_requests -= 1
    state.tenants.leave(request.tenant)
    finish_wait(state, request, now)
    for reason, waited_ns in enumerate(request.waits.by_reason(state.clock, now)):
        state.counters.waits_ns[reason] += waited_ns
    request.ended_ns = now
    request.prompt = request.prompt_hashes = b""
    del state.requests[request.key]
    older = state.ended.pop(request.key, None)
    if older is not None:
        forget(state, older)
    state.ended[request.key] = request
    request.kept_until_ns = max(now + request.detach_grace_ns, request.detached_until_ns or 0)
    if request.kept_until_ns > now:
        state.timers.set(request.kept_until_ns, TimerKind.KEPT, request.number)
    else:
        drop_output(request)
    bound_ended(state)


def bound_ended(state: SchedulerState) -> None:
    """Forgets the ended requests that are one too many, oldest first."""
    while len(state.ended) > state.config.max_ended_requests_kept:
        _, oldest = state.ended.popitem(last=False)
        forget(state, oldest)


def drop_output(request: Request) -> None:
    """Nobody can attach any more: only the account stays."""
    request.gateway_state = b""
    request.sampling = SamplingParams()
    request.prompt_logprobs = None
    for sequence in request.sequences:
        sequence.outputs = array("I")
        sequence.output_logprobs = None
        sequence.tail_hashes = b""


def forget(state: SchedulerState, request: Request) -> None:
    """Nothing is known of an ended request any more."""
    del state.by_number[request.number]
    if request.gateway is not None:
        del state.gateways[request.gateway].attachments[request.handle]
        request.gateway = None
