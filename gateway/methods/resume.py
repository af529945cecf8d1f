"""`Resume`, `Cancel` and `Explain`: calls about a request that is somewhere already."""

import asyncio
from collections.abc import Mapping

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome, Reason
from chairlift.ipc.front import MAX_CHOICES
from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Answer, Replicas, RequestKey
from gateway.methods.streaming import stream
from gateway.streams.generation import Generation, Phase
from gateway.streams.generation_table import GenerationTable
from gateway.streams.stream_token import StreamToken, decode_token
from gateway.validation.generate import check_request_id, is_request_id
from gateway.validation.violations import Violations, refuse_unknown_fields

_STATES = {
    "waiting": pb.REQUEST_STATE_WAITING,
    "running": pb.REQUEST_STATE_RUNNING,
    "finishing": pb.REQUEST_STATE_RUNNING,
    "preempted": pb.REQUEST_STATE_PREEMPTED,
    "swapped": pb.REQUEST_STATE_PREEMPTED,
    "ended": pb.REQUEST_STATE_ENDED,
}
_WAIT_STEPS_A_MS = 1024
"""Waits are told in whole multiples of 1/1024 ms, so that a sum of them is exact."""


class ResumeMethod:
    """Serves `Resume`."""

    def __init__(self, replicas: Replicas, table: GenerationTable) -> None:
        self._replicas = replicas
        self._table = table

    async def __call__(self, request: pb.ResumeRequest, call: Call) -> None:
        """Streams a request's events from the client's offsets on. Raises ApiError."""
        offsets = _check_resume(request)
        token = decode_token(request.stream_token) if request.stream_token else None
        call.add_trailing("x-request-id", request.request_id)
        key = RequestKey(call.principal.own_tenant, request.request_id)
        links = self._replicas.candidates(key, token.replica_id if token is not None else None)
        if not links:
            raise self._replicas.why_none()
        for link in links:
            generation = self._table.attach(key, link, _attach(key, token, link), offsets)
            try:
                await _answered(generation)
            except asyncio.CancelledError:
                self._table.release(generation)
                raise
            error = generation.error
            if error is not None and error.reason == Reason.UNKNOWN_REQUEST and link is not links[-1]:
                self._table.release(generation)
                continue
            await stream(generation, self._table, call)
            return


class CancelMethod:
    """Serves `Cancel`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.CancelRequest, call: Call) -> pb.CancelResponse:
        """Ends a request of the caller's wherever it is. UNKNOWN too where a replica that may have it cannot be asked:
        a client that cancels has no use for an error.
        """
        refuse_unknown_fields(request)
        if not is_request_id(request.request_id):
            return pb.CancelResponse(outcome=pb.CANCEL_OUTCOME_UNKNOWN)
        try:
            key = RequestKey(call.principal.own_tenant, request.request_id)
            outcome = await cancel_everywhere(self._replicas, key)
        except ApiError:
            outcome = CancelOutcome.UNKNOWN
        return pb.CancelResponse(outcome=pb.CancelOutcome.ValueType(outcome))


class ExplainMethod:
    """Serves `Explain`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.ExplainRequest, call: Call) -> pb.ExplainResponse:
        """Where the time of a request of the caller's went. Raises ApiError."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_request_id(request.request_id, violations)
        violations.raise_if_any()
        key = RequestKey(call.principal.own_tenant, request.request_id)
        links = self._replicas.candidates(key)
        if not links:
            raise self._replicas.why_none()
        answer: Answer | None = None
        for link in links:
            reply = await self._replicas.ask(link, lambda query: front.ExplainQuery(query, key.tenant, key.request_id))
            if isinstance(reply, front.ExplainReply):
                return explanation(reply)
            answer = reply or answer
        if isinstance(answer, front.QueryFailed):
            raise ApiError(answer.reason, "no such request is known")
        raise ApiError(Reason.NO_SCHEDULER, "the scheduler does not answer")


async def cancel_everywhere(replicas: Replicas, key: RequestKey) -> CancelOutcome:
    """Cancels a request at whichever replica has it. Raises ApiError when that may be one that does not answer."""
    links = replicas.candidates(key)
    if not links:
        raise replicas.why_none()
    replies = await asyncio.gather(
        *(replicas.ask(link, lambda query: front.Cancel(query, key.tenant, key.request_id)) for link in links)
    )
    outcomes = [CancelOutcome(reply.outcome) for reply in replies if isinstance(reply, front.CancelReply)]
    # The enumeration goes from the most telling to the least.
    best = min(outcomes, default=CancelOutcome.UNKNOWN)
    if best is CancelOutcome.UNKNOWN and len(outcomes) < len(links):
        raise ApiError(Reason.NO_SCHEDULER, "a scheduler that may have the request does not answer")
    return best


def request_state(name: str) -> pb.RequestState.ValueType:
    """The scheduler's word for a state, as the contract has it."""
    return _STATES.get(name, pb.REQUEST_STATE_UNSPECIFIED)


def explanation(reply: front.ExplainReply) -> pb.ExplainResponse:
    """The scheduler's account as a message."""
    waits = [(reason, round(ns * _WAIT_STEPS_A_MS / 1e6) / _WAIT_STEPS_A_MS) for reason, ns in reply.waits]
    return pb.ExplainResponse(
        request_id=reply.request_id,
        state=request_state(reply.state),
        total_ms=reply.total_ns / 1e6,
        wait_ms=sum(wait_ms for _, wait_ms in waits),
        waits=[
            pb.WaitShare(reason=pb.WaitReason.ValueType(reason), wait_ms=wait_ms)
            for reason, wait_ms in waits
            if wait_ms
        ],
        iterations=reply.iterations,
        prefill_chunks=reply.prefill_chunks,
        preemptions=reply.preemptions,
        swaps=reply.swaps,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        output_tokens=reply.output_tokens,
        queue_position=reply.queue_position,
    )


def _check_resume(request: pb.ResumeRequest) -> Mapping[int, int]:
    violations = Violations()
    violations.check_unknown_fields(request, "")
    check_request_id(request.request_id, violations)
    violations.check(len(request.offsets) <= MAX_CHOICES, "offsets", f"may have at most {MAX_CHOICES} entries")
    offsets: dict[int, int] = {}
    for position, entry in enumerate(request.offsets[:MAX_CHOICES]):
        violations.check_unknown_fields(entry, f"offsets[{position}]")
        violations.check(entry.index not in offsets, f"offsets[{position}].index", "occurs twice")
        offsets[entry.index] = entry.offset
    violations.raise_if_any()
    return offsets


def _attach(key: RequestKey, token: StreamToken | None, link: ReplicaLink) -> front.Attach:
    """The token speaks of the replica that it names only."""
    if token is None or token.replica_id != link.replica_id:
        return front.Attach(0, key.tenant, key.request_id)
    return front.Attach(0, key.tenant, key.request_id, token.epoch, token.number)


async def _answered(generation: Generation) -> None:
    while generation.phase is Phase.ASKED:
        await generation.output.wait()
