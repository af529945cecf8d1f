"""What operators see of requests: lists, a page at a time, and everything known of one. Changes nothing."""

from chairlift.ipc import operator
from scheduler_svc.core.queries import state_name
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.seats import passed
from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState

ENDED = "ended"


def list_requests(state: SchedulerState, query: operator.RequestsQuery, now: int) -> operator.RequestsReply:
    """One page, in order of the requests' numbers."""
    limit = min(max(query.limit, 1), operator.MAX_ROWS_A_PAGE)
    rows: list[operator.RequestRow] = []
    has_more = False
    for number, request in state.by_number.items():
        if number <= query.after or not _is_wanted(request, query):
            continue
        if len(rows) == limit:
            has_more = True
            break
        rows.append(_row(state, request, now))
    return operator.RequestsReply(query.query, state.epoch, tuple(rows), has_more)


def inspect(state: SchedulerState, query: operator.InspectQuery, now: int) -> operator.InspectReply | None:
    """A living or recently ended request; None when it is not known."""
    key = RequestKey(query.tenant, query.request_id)
    request = state.requests.get(key) or state.ended.get(key)
    if request is None:
        return None
    row = _row(state, request, now)
    waits = request.waits.by_reason(state.clock, now, passed(state, request, now))
    return operator.InspectReply(
        query=query.query,
        request=row,
        waits=tuple((reason, ns) for reason, ns in enumerate(waits) if ns),
        iterations=max(_num_rode(state, one) for one in request.sequences),
        prefill_chunks=sum(one.num_chunks for one in request.sequences),
        swaps=sum(one.num_swaps for one in request.sequences),
        choices=tuple(_choice(state, one) for one in request.sequences),
        max_tokens=request.output_limit,
        attempt=request.attempt,
        trace_id=request.trace_id,
    )


def _is_wanted(request: Request, query: operator.RequestsQuery) -> bool:
    if query.tenant and request.key.tenant != query.tenant:
        return False
    return state_name(request) in query.states if query.states else not request.is_ended


def _row(state: SchedulerState, request: Request, now: int) -> operator.RequestRow:
    waiting = next((one for one in request.sequences if one.is_waiting), None)
    deadline = None if request.is_ended else request.deadline_ns
    return operator.RequestRow(
        number=request.number,
        tenant=request.key.tenant,
        request_id=request.key.request_id,
        state=state_name(request),
        priority=request.priority,
        n=len(request.sequences),
        prompt_tokens=request.prompt_len,
        cached_tokens=request.cached_tokens,
        output_tokens=sum(_num_outputs(state, one) for one in request.sequences),
        total_ns=(now if request.ended_ns is None else request.ended_ns) - request.arrival_ns,
        wait_ns=sum(request.waits.by_reason(state.clock, now, passed(state, request, now))),
        preemptions=sum(one.preemptions for one in request.sequences),
        queue_position=None if waiting is None else state.queue.num_ahead(waiting, now),
        deadline_in_ns=None if deadline is None else max(deadline - now, 0),
        is_attached=request.gateway is not None,
        age_ns=now - request.arrival_ns,
    )


def _choice(state: SchedulerState, sequence: Sequence) -> operator.ChoiceRow:
    num_pending = state.confirmed.num_pending(sequence)
    # Whoever decodes has computed all that it knows but the newest.
    is_decoding = sequence.base is not None and sequence.confirmed_at is not None
    known = sequence.num_known + num_pending
    return operator.ChoiceRow(
        index=sequence.choice,
        state=_choice_state(sequence),
        finish_reason=0 if sequence.end is None else sequence.end.reason,
        known_tokens=known,
        scheduled_tokens=state.batch.num_scheduled(sequence),
        computed_tokens=known - 1 if is_decoding else sequence.computed,
        num_blocks=len(sequence.blocks),
        output_tokens=_num_outputs(state, sequence),
        preemptions=sequence.preemptions,
    )


def _choice_state(sequence: Sequence) -> str:
    return ENDED if sequence.state is SequenceState.ENDED else sequence.state.name.lower()


def _num_outputs(state: SchedulerState, sequence: Sequence) -> int:
    if sequence.end is not None:
        return sequence.end.num_tokens
    return len(sequence.outputs) + state.confirmed.num_pending(sequence)


def _num_rode(state: SchedulerState, sequence: Sequence) -> int:
    return sequence.num_rode + state.confirmed.num_pending(sequence)
