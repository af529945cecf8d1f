"""What gateways are sent of a step and of an end. Owns the entries of the gateways' columns; decides nothing.

Offsets are exact by construction: a column entry starts at the length of the settled output and advances with each
result, an entry made for a single token is at the length of the output before it.
"""

from array import array

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.tokens import pack_u32, pack_u64
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Transition


def start_sending(state: SchedulerState, sequence: Sequence) -> None:
    """From the next result on, its tokens in the decode column go to the gateway that is attached, if one is."""
    request = sequence.request
    if request.gateway is None or sequence.confirmed_at is None or sequence.is_ended:
        return
    state.settle(sequence)
    column = state.gateway(request.gateway).column
    column.add(sequence, sequence.confirmed_at, request.handle + sequence.choice, len(sequence.outputs))


def stop_sending(state: SchedulerState, sequence: Sequence) -> None:
    """Its tokens go nowhere any more."""
    gateway = sequence.request.gateway
    if sequence.column_index is not None and gateway is not None:
        state.gateways[gateway].column.remove(sequence)


def apply_transition(state: SchedulerState, transition: Transition, now: int) -> None:
    """The confirmed column becomes that of the next step in flight."""
    confirmed = state.confirmed
    for sequence in transition.left:
        stop_sending(state, sequence)
        sequence.request.tenant.settle_bucket(now, confirmed.step)
        sequence.request.tenant.change_rows(-1, confirmed.step)
        moved = confirmed.leave(sequence)
        if moved is not None and moved.column_index is not None and moved.request.gateway is not None:
            assert moved.confirmed_at is not None
            state.gateways[moved.request.gateway].column.reposition(moved, moved.confirmed_at)
    for sequence in transition.joined:
        confirmed.join(sequence)
        sequence.request.tenant.settle_bucket(now, confirmed.step)
        sequence.request.tenant.change_rows(1, confirmed.step)
        start_sending(state, sequence)


class _Extra:
    """What goes to one gateway beside its column."""

    __slots__ = ("handles", "logprobs", "offsets", "prompt_logprobs", "tokens")

    def __init__(self) -> None:
        self.handles: array[int] = array("Q")
        self.offsets: array[int] = array("I")
        self.tokens: array[int] = array("I")
        self.logprobs: list[front.DeltaLogprobs] = []
        self.prompt_logprobs: list[front.DeltaPromptLogprobs] = []


class StepEmission:
    """Collects what one result gives to each gateway, then sends one Deltas a gateway."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._extras: dict[int, _Extra] = {}

    def _extra(self, gateway: int) -> _Extra:
        return self._extras.setdefault(gateway, _Extra())

    def add_token(self, sequence: Sequence, token: int) -> None:
        """A token sampled outside the column; call before it is appended to the output."""
        request = sequence.request
        if request.gateway is not None:
            extra = self._extra(request.gateway)
            extra.handles.append(request.handle + sequence.choice)
            extra.offsets.append(len(sequence.outputs))
            extra.tokens.append(token)

    def add_logprobs(self, sequence: Sequence, offset: int, row: device.RowLogprobs) -> None:
        """Log-probabilities of the output token at `offset`: kept for whoever attaches, and sent."""
        request = sequence.request
        if sequence.output_logprobs is None:
            sequence.output_logprobs = []
        sequence.output_logprobs.append(front.DeltaLogprobs(0, offset, row.token_ids, row.logprobs))
        if request.gateway is not None:
            handle = request.handle + sequence.choice
            self._extra(request.gateway).logprobs.append(
                front.DeltaLogprobs(handle, offset, row.token_ids, row.logprobs)
            )

    def add_prompt_logprobs(self, request: Request, part: device.PromptLogprobs) -> None:
        """Log-probabilities of prompt tokens; those that were sent before (a chunk computed again) are left out."""
        count = len(part.token_ids) // (4 * part.width)
        known = max(request.prompt_logprobs_end - part.offset, 0)
        if known >= count or part.offset > request.prompt_logprobs_end:
            return
        skip = known * 4 * part.width
        entry = front.DeltaPromptLogprobs(
            0, part.offset + known, part.width, part.token_ids[skip:], part.logprobs[skip:]
        )
        request.prompt_logprobs_end = part.offset + count
        if request.prompt_logprobs is None:
            request.prompt_logprobs = []
        request.prompt_logprobs.append(entry)
        if request.gateway is not None:
            sent = msgspec.structs.replace(entry, handle=request.handle)
            self._extra(request.gateway).prompt_logprobs.append(sent)

    def send_column(self, column: "array[int]", sampled: bytes) -> None:
        """One Deltas a gateway that gets something of this result. Offsets of the columns advance: call once."""
        for number, gateway in self._state.gateways.items():
            extra = self._extras.get(number)
            handles = offsets = tokens = b""
            if len(gateway.column):
                handles, offsets, tokens = gateway.column.take(column, sampled)
            elif extra is None:
                continue
            if extra is None:
                self._state.emit(number, front.Deltas(handles, offsets, tokens))
            else:
                self._state.emit(number, _with_extra(extra, handles, offsets, tokens))


def _with_extra(extra: _Extra, handles: bytes, offsets: bytes, tokens: bytes) -> front.Deltas:
    return front.Deltas(
        handles + pack_u64(extra.handles),
        offsets + pack_u32(extra.offsets),
        tokens + pack_u32(extra.tokens),
        logprobs=tuple(extra.logprobs),
        prompt_logprobs=tuple(extra.prompt_logprobs),
    )


def finished(sequence: Sequence, *, is_last: bool) -> front.Finished:
    """What a gateway is told of an ended choice; `is_last` when no choice of the request is left."""
    request, end = sequence.request, sequence.end
    assert end is not None
    boarded = request.first_boarded_ns
    first = sequence.first_token_ns
    return front.Finished(
        handle=request.handle + sequence.choice,
        reason=end.reason,
        num_tokens=end.num_tokens,
        cached_tokens=request.cached_tokens,
        stop_token_id=end.stop_token_id,
        preemptions=sequence.preemptions,
        queue_ns=(end.ended_ns if boarded is None else boarded) - request.arrival_ns,
        ttft_ns=None if first is None else first - request.arrival_ns,
        total_ns=end.ended_ns - request.arrival_ns,
        failure_reason=end.failure_reason,
        failure_message=end.failure_message,
        retry_after_ns=end.retry_after_ns,
        request_ended=is_last,
    )
