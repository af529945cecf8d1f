"""Who listens to a request: attaching, detaching, and what a stop string found by a gateway does.

An attachment is (gateway, base handle). A request has at most one; a newer one supersedes the older. Without one the
request goes on for a grace, or not at all.
"""

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import emission, ends, validation
from scheduler_svc.core.ends import Cause
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import TimerKind

CLIENT_GONE = Cause(FinishReason.CANCELLED, failure=Reason.CANCELLED, message="the client's stream ended")
STOP_STRING = Cause(FinishReason.STOP_STRING)


def find_kept(state: SchedulerState, key: RequestKey, now: int) -> Request | None:
    """The request with this key that can be attached to: it lives, or ended a short while ago."""
    request = state.requests.get(key)
    if request is None:
        request = state.ended.get(key)
        if request is not None and request.kept_until_ns <= now:
            return None
    return request


def bind(state: SchedulerState, request: Request, gateway: int, handle: int) -> None:
    """From now on this gateway is told of it, under this handle."""
    request.gateway, request.handle = gateway, handle
    request.detached_until_ns = None
    state.gateway(gateway).attachments[handle] = request


def _unbind(state: SchedulerState, request: Request) -> None:
    if request.gateway is None:
        return
    for sequence in request.sequences:
        emission.stop_sending(state, sequence)
    del state.gateways[request.gateway].attachments[request.handle]
    request.gateway = None


def attach(state: SchedulerState, gateway: int, message: front.Attach, now: int) -> None:
    """Resume: everything so far, then what follows."""
    handle = message.handle
    request = find_kept(state, RequestKey(message.tenant, message.request_id), now)
    is_named = message.epoch == state.epoch and message.number is not None
    if request is None or (is_named and message.number != request.number):
        state.emit(gateway, front.Refused(handle, Reason.UNKNOWN_REQUEST, "no such request lives here", "request_id"))
    elif not validation.is_base_handle(handle) or handle in state.gateway(gateway).attachments:
        state.emit(gateway, front.Refused(handle, Reason.INVALID_REQUEST, "the handle is no free base handle"))
    else:
        attach_to(state, request, gateway, handle, now)


def attach_to(state: SchedulerState, request: Request, gateway: int, handle: int, now: int) -> None:
    """Makes this the request's attachment; an older one is superseded."""
    if request.gateway is not None:
        if not request.is_ended:
            state.emit(request.gateway, front.Superseded(request.handle))
        _unbind(state, request)
    bind(state, request, gateway, handle)
    for sequence in request.sequences:
        state.settle(sequence)
    state.emit(gateway, _attached(state, request, now))
    ended = [sequence for sequence in request.sequences if sequence.is_ended]
    for sequence in ended:
        is_last = request.is_ended and sequence is ended[-1]
        state.emit(gateway, emission.finished(sequence, is_last=is_last))
    for sequence in request.sequences:
        emission.start_sending(state, sequence)


def _attached(state: SchedulerState, request: Request, now: int) -> front.Attached:
    handle = request.handle
    waiting = next((one for one in request.sequences if one.is_waiting), None)
    has_logprobs = any(one.output_logprobs for one in request.sequences)
    return front.Attached(
        handle=handle,
        number=request.number,
        prompt_tokens=request.prompt_len,
        n=len(request.sequences),
        seed=request.sampling.seed,
        outputs=tuple(pack_u32(sequence.outputs) for sequence in request.sequences),
        gateway_state=request.gateway_state,
        queue_position=0 if waiting is None else state.queue.num_ahead(waiting, now),
        output_logprobs=tuple(_logprobs(one, handle) for one in request.sequences) if has_logprobs else (),
        prompt_logprobs=tuple(msgspec.structs.replace(part, handle=handle) for part in request.prompt_logprobs or ()),
        submit=None if request.is_ended else _submit_of(request, now),
    )


def _submit_of(request: Request, now: int) -> front.Submit:
    """As it could be submitted now; its outputs and ends are told beside it."""
    has_had_its_place = request.first_boarded_ns is not None
    return front.Submit(
        handle=request.handle,
        tenant=request.key.tenant,
        request_id=request.key.request_id,
        digest=request.digest,
        prompt=request.prompt,
        sampling=request.sampling,
        n=len(request.sequences),
        max_tokens=request.max_tokens,
        priority=request.priority,
        deadline_in_ns=_time_left(request.deadline_ns, now),
        queue_timeout_in_ns=None if has_had_its_place else _time_left(request.queue_deadline_ns, now),
        ttft_slo_ns=request.ttft_slo_ns,
        itl_slo_ns=request.itl_slo_ns,
        detach_grace_ns=request.detach_grace_ns,
        attempt=request.attempt,
        age_ns=now - request.arrival_ns,
    )


def _time_left(until_ns: int | None, now: int) -> int | None:
    return None if until_ns is None else max(1, until_ns - now)


def _logprobs(sequence: Sequence, handle: int) -> tuple[front.DeltaLogprobs, ...]:
    own = handle + sequence.choice
    return tuple(msgspec.structs.replace(entry, handle=own) for entry in sequence.output_logprobs or ())


def detach(state: SchedulerState, gateway: int, handle: int, now: int) -> None:
    """The client's stream ended: the request goes on for its grace, or ends. An unknown handle is an older one's."""
    request = state.gateway(gateway).attachments.get(handle)
    if request is None:
        return
    _unbind(state, request)
    if request.is_ended:
        return
    if request.detach_grace_ns == 0:
        ends.end_request(state, request, CLIENT_GONE, now)
    else:
        _wait_for_attachment(state, request, request.detach_grace_ns, now)


def gateway_lost(state: SchedulerState, gateway: int, now: int) -> None:
    """A gateway died: its requests go on for a grace, so that their clients can come back through another."""
    record = state.gateways.get(gateway)
    if record is None:
        return
    for request in list(record.attachments.values()):
        _unbind(state, request)
        if not request.is_ended:
            grace = max(request.detach_grace_ns, state.config.gateway_loss_grace_ns)
            _wait_for_attachment(state, request, grace, now)
    del state.gateways[gateway]


def _wait_for_attachment(state: SchedulerState, request: Request, grace_ns: int, now: int) -> None:
    request.detached_until_ns = now + grace_ns
    state.timers.set(request.detached_until_ns, TimerKind.DETACHED, request.number)


def end_if_still_detached(state: SchedulerState, request: Request, now: int) -> None:
    """Nobody came back in time."""
    if request.detached_until_ns is not None and request.detached_until_ns <= now and not request.is_ended:
        ends.end_request(state, request, CLIENT_GONE, now)


def stopped(state: SchedulerState, gateway: int, message: front.Stopped, now: int) -> None:
    """Cuts a choice's record where its gateway found a stop string, also when it ended otherwise meanwhile."""
    base = message.handle & ~(front.MAX_CHOICES - 1)
    request = state.gateway(gateway).attachments.get(base)
    choice = message.handle - base
    if request is None or choice >= len(request.sequences) or message.num_tokens < 0:
        return
    sequence = request.sequences[choice]
    if sequence.end is None:
        ends.end_sequence(state, sequence, STOP_STRING, now, message.num_tokens)
    elif message.num_tokens <= sequence.end.num_tokens:
        ends.cut_ended(sequence, FinishReason.STOP_STRING, message.num_tokens)
