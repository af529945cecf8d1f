"""Answers about one request: cancelling it by key, and where its time went."""

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome, FinishReason, Reason, WaitReason
from scheduler_svc.core import ends
from scheduler_svc.core.ends import Cause
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.seats import passed
from scheduler_svc.core.sequence import SequenceState
from scheduler_svc.core.state import SchedulerState

_NEAREST_FIRST = (
    SequenceState.RUNNING,
    SequenceState.FINISHING,
    SequenceState.SWAPPED,
    SequenceState.PREEMPTED,
    SequenceState.WAITING,
)

CANCELLED = Cause(FinishReason.CANCELLED, failure=Reason.CANCELLED, message="cancelled")


def cancel(state: SchedulerState, gateway: int, message: front.Cancel, now: int) -> None:
    """Ends every choice; the answer says what the call met."""
    key = RequestKey(message.tenant, message.request_id)
    request = state.requests.get(key)
    if request is None:
        outcome = CancelOutcome.ALREADY_ENDED if key in state.ended else CancelOutcome.UNKNOWN
    else:
        is_running = any(not one.is_waiting for one in request.sequences if not one.is_ended)
        outcome = CancelOutcome.WAS_RUNNING if is_running else CancelOutcome.WAS_WAITING
        ends.end_request(state, request, CANCELLED, now)
    state.emit(gateway, front.CancelReply(message.query, outcome))


def explain(state: SchedulerState, gateway: int, message: front.ExplainQuery, now: int) -> None:
    """The account of a living or recently ended request of that tenant."""
    key = RequestKey(message.tenant, message.request_id)
    request = state.requests.get(key) or state.ended.get(key)
    if request is None:
        answer: front.ToGateway = front.QueryFailed(
            message.query, Reason.UNKNOWN_REQUEST, "no such request is known here"
        )
    else:
        answer = _account(state, request, message.query, now)
    state.emit(gateway, answer)


def _account(state: SchedulerState, request: Request, query: int, now: int) -> front.ExplainReply:
    waits = request.waits.by_reason(state.clock, now, passed(state, request, now))
    for sequence in request.sequences:
        state.settle(sequence)
    waiting = next((one for one in request.sequences if one.is_waiting), None)
    outputs = sum(len(one.outputs) if one.end is None else one.end.num_tokens for one in request.sequences)
    return front.ExplainReply(
        query=query,
        request_id=request.key.request_id,
        state=state_name(request),
        wait_ns=sum(waits),
        waits=tuple((reason, waits[reason]) for reason in WaitReason if waits[reason]),
        total_ns=(now if request.ended_ns is None else request.ended_ns) - request.arrival_ns,
        iterations=max(one.num_rode for one in request.sequences),
        prefill_chunks=sum(one.num_chunks for one in request.sequences),
        preemptions=sum(one.preemptions for one in request.sequences),
        swaps=sum(one.num_swaps for one in request.sequences),
        cached_tokens=request.cached_tokens,
        prompt_tokens=request.prompt_len,
        output_tokens=outputs,
        queue_position=None if waiting is None else state.queue.num_ahead(waiting, now),
    )


def state_name(request: Request) -> str:
    """The state of the choice that has come furthest of those that have no end."""
    states = [one.state for one in request.sequences if not one.is_ended]
    return next((state.name.lower() for state in _NEAREST_FIRST if state in states), "ended")
