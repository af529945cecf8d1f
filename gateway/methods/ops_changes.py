"""What the operator may change. Each change leaves an audit line: who, what, why, and what became of it."""

import asyncio
from collections.abc import Callable

import structlog

from chairlift.ipc import front
from chairlift.ipc.common import Reason
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError, refuse_field
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas, RequestKey
from gateway.methods.ops_reads import GatewayIdentity
from gateway.methods.resume import cancel_everywhere
from gateway.validation.generate import check_request_id
from gateway.validation.violations import Violations, duration_ns

ALL = "all"


class Drainer:
    """Serves `Drain` and `Undrain`, for replicas and for this gateway."""

    def __init__(
        self, identity: GatewayIdentity, replicas: Replicas, drain_here: Callable[[bool, float | None], None]
    ) -> None:
        """`drain_here` stops (or lets on) admission in this gateway, with seconds until what is left is ended."""
        self._identity = identity
        self._replicas = replicas
        self._drain_here = drain_here

    async def drain(self, request: pb.DrainRequest, call: Call) -> pb.DrainResponse:
        """Stops admission. Raises ApiError."""
        violations, deadline_ns = Violations(), None
        if request.HasField("deadline"):
            deadline_ns = duration_ns(violations, request.deadline, "deadline", may_be_zero=True)
        violations.raise_if_any()
        results = await self._change(request, undrain=False, deadline_ns=deadline_ns)
        _audit(call, "Drain", request.comment, [_name(result) for result in results])
        return pb.DrainResponse(results=results)

    async def undrain(self, request: pb.UndrainRequest, call: Call) -> pb.UndrainResponse:
        """Lets on again. Raises ApiError."""
        results = await self._change(request, undrain=True, deadline_ns=None)
        _audit(call, "Undrain", request.comment, [_name(result) for result in results])
        return pb.UndrainResponse(results=results)

    async def _change(
        self, request: pb.DrainRequest | pb.UndrainRequest, *, undrain: bool, deadline_ns: int | None
    ) -> list[pb.TargetResult]:
        links: list[ReplicaLink] = []
        is_gateway = False
        match request.WhichOneof("target"):
            case "replica_id":
                links = find_named(self._replicas, request.replica_id)
            case "gateway_id" if request.gateway_id == self._identity.gateway_id:
                is_gateway = True
            case "gateway_id":
                raise refuse_field(
                    "gateway_id", f"this is {self._identity.gateway_id}; another gateway is called itself"
                )
            case "all" if request.all:
                links, is_gateway = list(self._replicas.links), True
            case _:
                raise refuse_field("target", "one of replica_id, gateway_id and all must be set")
        results = await asyncio.gather(
            *(self._change_replica(link, undrain=undrain, deadline_ns=deadline_ns) for link in links)
        )
        if is_gateway:
            self._drain_here(not undrain, None if deadline_ns is None else deadline_ns / 1e9)
            results = [*results, pb.TargetResult(gateway_id=self._identity.gateway_id)]
        return list(results)

    async def _change_replica(self, link: ReplicaLink, *, undrain: bool, deadline_ns: int | None) -> pb.TargetResult:
        reply = await self._replicas.ask(link, lambda query: front.DrainCommand(query, undrain, deadline_ns))
        failure = None if isinstance(reply, front.LoadReply) else unreachable()
        return pb.TargetResult(replica_id=link.replica_id, failure=failure)


class FlushMethod:
    """Serves `FlushPrefixCache`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.FlushPrefixCacheRequest, call: Call) -> pb.FlushPrefixCacheResponse:
        """Forgets cached prefixes that nobody uses. Raises ApiError."""
        links = find_named(self._replicas, request.replica_id)
        results = await asyncio.gather(*(self._flush(link) for link in links))
        _audit(call, "FlushPrefixCache", request.comment, [result.replica_id for result in results])
        return pb.FlushPrefixCacheResponse(results=results)

    async def _flush(self, link: ReplicaLink) -> pb.FlushResult:
        before = await self._replicas.ask(link, front.LoadQuery)
        after = await self._replicas.ask(link, front.FlushPrefixCacheCommand)
        if not isinstance(before, front.LoadReply) or not isinstance(after, front.LoadReply):
            return pb.FlushResult(replica_id=link.replica_id, failure=unreachable())
        freed = max(0, before.load.blocks_cached - after.load.blocks_cached)
        return pb.FlushResult(replica_id=link.replica_id, num_blocks=freed)


class TerminateMethod:
    """Serves `TerminateRequest`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.TerminateRequestRequest, call: Call) -> pb.TerminateRequestResponse:
        """Ends any tenant's request. Raises ApiError."""
        violations = Violations()
        check_request_id(request.request_id, violations)
        violations.raise_if_any()
        outcome = await cancel_everywhere(self._replicas, RequestKey(request.tenant, request.request_id))
        _audit(call, "TerminateRequest", request.comment, [request.tenant, request.request_id])
        return pb.TerminateRequestResponse(outcome=inference_pb2.CancelOutcome.ValueType(outcome))


def find_named(replicas: Replicas, replica_id: str) -> list[ReplicaLink]:
    """The replicas that a change names: one, or ``all``. Raises ApiError."""
    if not replica_id:
        raise refuse_field("replica_id", f"a change names one replica, or {ALL!r}")
    return replicas.find("" if replica_id == ALL else replica_id)


def unreachable() -> inference_pb2.Failure:
    """What is told of a replica that did not answer."""
    error = ApiError(Reason.NO_SCHEDULER, "the scheduler does not answer")
    return inference_pb2.Failure(reason=error.reason, message=error.message, retryable=True)


def _name(result: pb.TargetResult) -> str:
    return (result.replica_id or result.gateway_id) + (" (failed)" if result.HasField("failure") else "")


def _audit(call: Call, method: str, comment: str, targets: list[str]) -> None:
    structlog.get_logger().info("audit", method=method, peer=call.peer, comment=comment[:200], targets=targets)
