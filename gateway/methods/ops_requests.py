"""`ListRequests`, `InspectRequest` and `TerminateRequest`."""

import asyncio
import base64
import binascii
import heapq
from itertools import islice

import msgspec

from chairlift.ipc import front, operator
from chairlift.ipc.common import Reason
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError, refuse_field
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas, RequestKey
from gateway.methods.ops_access import Veil, audit, check_comment
from gateway.methods.resume import cancel_everywhere, explanation, request_state
from gateway.validation.generate import check_request_id
from gateway.validation.violations import Violations

_DEFAULT_PAGE = 50
_MAX_TOKEN_CHARS = 16_384
_STATES: dict[int, tuple[str, ...]] = {
    inference_pb2.REQUEST_STATE_WAITING: ("waiting",),
    inference_pb2.REQUEST_STATE_RUNNING: ("running", "finishing"),
    inference_pb2.REQUEST_STATE_PREEMPTED: ("preempted", "swapped"),
    inference_pb2.REQUEST_STATE_ENDED: ("ended",),
}


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a list has come in one replica."""

    replica_id: str
    epoch: int
    after: int


class _Page(msgspec.Struct, frozen=True):
    """What one replica has to give."""

    link: ReplicaLink
    epoch: int
    rows: tuple[operator.RequestRow, ...]
    has_more: bool


class ListRequestsMethod:
    """Serves `ListRequests`. Pages of several replicas are merged by age."""

    def __init__(self, replicas: Replicas, veil: Veil) -> None:
        self._replicas = replicas
        self._veil = veil

    async def __call__(self, request: pb.ListRequestsRequest, call: Call) -> pb.ListRequestsResponse:
        """One page. Raises ApiError, also where a replica that has a part of the list does not answer."""
        is_seen = self._veil.is_transparent_to(call)
        cursors = _check_list(request, is_seen=is_seen)
        size = min(request.page_size or _DEFAULT_PAGE, operator.MAX_ROWS_A_PAGE)
        states = tuple(word for state in request.states for word in _STATES[state])
        links = self._replicas.find(request.replica_id)

        async def ask(link: ReplicaLink) -> _Page:
            cursor = cursors.get(link.replica_id)
            after = 0 if cursor is None else cursor.after
            reply = await self._replicas.ask(
                link, lambda number: operator.RequestsQuery(number, request.tenant, states, after, size)
            )
            if not isinstance(reply, operator.RequestsReply):
                raise ApiError(Reason.NO_SCHEDULER, f"the scheduler of {link.replica_id!r} does not answer")
            if cursor is not None and cursor.epoch != reply.epoch:
                raise refuse_field("page_token", "is of an earlier life of the scheduler: start the list anew")
            return _Page(link, reply.epoch, reply.requests, reply.has_more)

        pages = await asyncio.gather(*map(ask, links))
        # A merge keeps each replica's own order: what is told of one is all that comes before its cursor.
        by_replica = ([(row, page) for row in page.rows] for page in pages)
        chosen = list(islice(heapq.merge(*by_replica, key=lambda entry: -entry[0].age_ns), size))
        return pb.ListRequestsResponse(
            requests=[self._summary(row, page.link.replica_id, is_seen=is_seen) for row, page in chosen],
            next_page_token=_next_token(pages, [row for row, _ in chosen], cursors),
        )

    def _summary(self, row: operator.RequestRow, replica_id: str, *, is_seen: bool) -> pb.RequestSummary:
        return summary(row, replica_id, *self._veil.names(row, is_seen=is_seen))


class InspectRequestMethod:
    """Serves `InspectRequest`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.InspectRequestRequest, _: Call) -> pb.InspectRequestResponse:
        """Everything known of a request, wherever it is. Raises ApiError."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_request_id(request.request_id, violations)
        violations.raise_if_any()
        key = RequestKey(request.tenant, request.request_id)
        links = self._replicas.candidates(key)
        if not links:
            raise self._replicas.why_none()
        is_told = False
        for link in links:
            reply = await self._replicas.ask(
                link, lambda number: operator.InspectQuery(number, key.tenant, key.request_id)
            )
            if isinstance(reply, operator.InspectReply):
                return _inspected(reply, link.replica_id)
            is_told = is_told or reply is not None
        if is_told:
            raise ApiError(Reason.UNKNOWN_REQUEST, "no such request is known")
        raise ApiError(Reason.NO_SCHEDULER, "the scheduler does not answer")


class TerminateMethod:
    """Serves `TerminateRequest`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.TerminateRequestRequest, call: Call) -> pb.TerminateRequestResponse:
        """Ends any tenant's request. Raises ApiError."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_request_id(request.request_id, violations)
        check_comment(request.comment, violations)
        violations.raise_if_any()
        key = RequestKey(request.tenant, request.request_id)
        try:
            outcome = await cancel_everywhere(self._replicas, key)
        except ApiError as error:
            audit(call, "TerminateRequest", request.comment, key_words(key), outcome=error.reason)
            raise
        audit(call, "TerminateRequest", request.comment, key_words(key), outcome=outcome.name)
        return pb.TerminateRequestResponse(outcome=inference_pb2.CancelOutcome.ValueType(outcome))


def key_words(key: RequestKey) -> list[str]:
    """Tenant and id, for an audit line."""
    return [key.tenant, key.request_id]


def summary(row: operator.RequestRow, replica_id: str, tenant: str, request_id: str) -> pb.RequestSummary:
    """A request in one line, under the names that the caller may see."""
    return pb.RequestSummary(
        tenant=tenant,
        request_id=request_id,
        replica_id=replica_id,
        state=request_state(row.state),
        priority=row.priority,
        num_choices=row.n,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        total_ms=row.total_ns / 1e6,
        wait_ms=row.wait_ns / 1e6,
        preemptions=row.preemptions,
        queue_position=row.queue_position,
        deadline_in_ms=None if row.deadline_in_ns is None else row.deadline_in_ns / 1e6,
        is_attached=row.is_attached,
    )


def _inspected(reply: operator.InspectReply, replica_id: str) -> pb.InspectRequestResponse:
    row = reply.request
    account = front.ExplainReply(
        query=0,
        request_id=row.request_id,
        state=row.state,
        wait_ns=row.wait_ns,
        waits=reply.waits,
        total_ns=row.total_ns,
        iterations=reply.iterations,
        prefill_chunks=reply.prefill_chunks,
        preemptions=row.preemptions,
        swaps=reply.swaps,
        cached_tokens=row.cached_tokens,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        queue_position=row.queue_position,
    )
    return pb.InspectRequestResponse(
        summary=summary(row, replica_id, row.tenant, row.request_id),
        explanation=explanation(account),
        choices=[_choice(choice) for choice in reply.choices],
        max_tokens=reply.max_tokens,
        attempt=reply.attempt,
        trace_id=reply.trace_id,
    )


def _choice(choice: operator.ChoiceRow) -> pb.ChoiceDetail:
    return pb.ChoiceDetail(
        index=choice.index,
        state=request_state(choice.state),
        finish_reason=inference_pb2.FinishReason.ValueType(choice.finish_reason),
        known_tokens=choice.known_tokens,
        scheduled_tokens=choice.scheduled_tokens,
        computed_tokens=choice.computed_tokens,
        num_blocks=choice.num_blocks,
        output_tokens=choice.output_tokens,
        preemptions=choice.preemptions,
    )


# ---- pages ----


def _check_list(request: pb.ListRequestsRequest, *, is_seen: bool) -> dict[str, _Cursor]:
    violations = Violations()
    violations.check_unknown_fields(request, "")
    for position, state in enumerate(request.states):
        if not violations.is_full:
            violations.check(state in _STATES, f"states[{position}]", "is no state of a request")
    # A viewer who could ask for one tenant's requests would learn which tenants there are.
    violations.check(is_seen or not request.tenant, "tenant", "is hidden from this credential")
    cursors = _read_token(request.page_token)
    violations.check(cursors is not None, "page_token", "is no token of this service")
    violations.raise_if_any()
    return {cursor.replica_id: cursor for cursor in cursors or ()}


def _read_token(token: str) -> tuple[_Cursor, ...] | None:
    """None for what is no token."""
    if not token:
        return ()
    if len(token) > _MAX_TOKEN_CHARS:
        return None
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(token), type=tuple[_Cursor, ...])
    except (binascii.Error, ValueError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def _next_token(pages: list[_Page], chosen: list[operator.RequestRow], cursors: dict[str, _Cursor]) -> str:
    """Empty when every replica's requests have been told."""
    told = set(map(id, chosen))
    is_more = False
    ahead: list[_Cursor] = []
    for page in pages:
        name = page.link.replica_id
        numbers = [row.number for row in page.rows if id(row) in told]
        before = cursors[name].after if name in cursors else 0
        ahead.append(_Cursor(name, page.epoch, max(numbers, default=before)))
        is_more = is_more or page.has_more or len(numbers) < len(page.rows)
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(ahead)).decode() if is_more else ""
