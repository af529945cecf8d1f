"""What the operator may change. Each change leaves an audit line: who, what, why, and what became of it."""

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

from chairlift.ipc import front
from chairlift.ipc.common import Reason
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError, refuse_field
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas
from gateway.methods.ops_access import audit, check_comment
from gateway.methods.ops_reads import GatewayIdentity
from gateway.validation.violations import Violations, duration_ns

ALL = "all"


class Drainer:
    """Serves `Drain` and `Undrain`, for replicas and for this gateway."""

    def __init__(
        self,
        identity: GatewayIdentity,
        replicas: Replicas,
        drain_here: Callable[[bool, float | None], None],
        default_deadline_s: float,
    ) -> None:
        """`drain_here` stops (or lets on) admission in this gateway, with seconds until what is left is ended."""
        self._default_deadline_s = default_deadline_s
        self._identity = identity
        self._replicas = replicas
        self._drain_here = drain_here

    async def drain(self, request: pb.DrainRequest, call: Call) -> pb.DrainResponse:
        """Stops admission. Raises ApiError."""
        violations, deadline_ns = Violations(), None
        if request.HasField("deadline"):
            deadline_ns = duration_ns(violations, request.deadline, "deadline", may_be_zero=True)
        self._check(request, violations)
        results = await self._change(request, undrain=False, deadline_ns=deadline_ns)
        audit(call, "Drain", request.comment, [target_name(result) for result in results])
        return pb.DrainResponse(results=results)

    async def undrain(self, request: pb.UndrainRequest, call: Call) -> pb.UndrainResponse:
        """Lets on again. Raises ApiError."""
        self._check(request, Violations())
        results = await self._change(request, undrain=True, deadline_ns=None)
        audit(call, "Undrain", request.comment, [target_name(result) for result in results])
        return pb.UndrainResponse(results=results)

    @staticmethod
    def _check(request: pb.DrainRequest | pb.UndrainRequest, violations: Violations) -> None:
        violations.check_unknown_fields(request, "")
        check_comment(request.comment, violations)
        violations.raise_if_any()

    async def _change(
        self, request: pb.DrainRequest | pb.UndrainRequest, *, undrain: bool, deadline_ns: int | None
    ) -> list[pb.TargetResult]:
        links, is_here = find_targets(request, self._replicas, self._identity)
        results = await asyncio.gather(
            *(self._change_replica(link, undrain=undrain, deadline_ns=deadline_ns) for link in links)
        )
        if is_here:
            deadline_s = self._default_deadline_s if deadline_ns is None else deadline_ns / 1e9
            self._drain_here(not undrain, deadline_s)
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
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_comment(request.comment, violations)
        violations.raise_if_any()
        links = find_named(self._replicas, request.replica_id)
        results = await asyncio.gather(*(self._flush(link) for link in links))
        audit(call, "FlushPrefixCache", request.comment, [_flushed(result) for result in results])
        return pb.FlushPrefixCacheResponse(results=results)

    async def _flush(self, link: ReplicaLink) -> pb.FlushResult:
        reply = await self._replicas.ask(link, front.FlushPrefixCacheCommand)
        if not isinstance(reply, front.LoadReply):
            return pb.FlushResult(replica_id=link.replica_id, failure=unreachable())
        return pb.FlushResult(replica_id=link.replica_id, num_blocks=reply.num_flushed)


class _Targeted(Protocol):
    """A change that names a replica, this gateway, or everything."""

    replica_id: str
    gateway_id: str
    all: bool

    def WhichOneof(self, oneof_group: Literal["target"]) -> Literal["replica_id", "gateway_id", "all"] | None:
        """The one that is set."""


def find_targets(request: _Targeted, replicas: Replicas, identity: GatewayIdentity) -> tuple[list[ReplicaLink], bool]:
    """The replicas that a change names, and whether it names this gateway. Raises ApiError."""
    match request.WhichOneof("target"):
        case "replica_id":
            return find_named(replicas, request.replica_id), False
        case "gateway_id" if request.gateway_id == identity.gateway_id:
            return [], True
        case "gateway_id":
            raise refuse_field("gateway_id", f"this is {identity.gateway_id}; another gateway is called itself")
        case "all" if request.all:
            return list(replicas.links), True
        case _:
            raise refuse_field("target", "one of replica_id, gateway_id and all must be set")


def find_named(replicas: Replicas, replica_id: str) -> list[ReplicaLink]:
    """The replicas that a change names: one, or ``all``. Raises ApiError."""
    if not replica_id:
        raise refuse_field("replica_id", f"a change names one replica, or {ALL!r}")
    return replicas.find("" if replica_id == ALL else replica_id)


def unreachable() -> inference_pb2.Failure:
    """What is told of a replica that did not answer."""
    error = ApiError(Reason.NO_SCHEDULER, "the scheduler does not answer")
    return inference_pb2.Failure(reason=error.reason, message=error.message, retryable=True)


def target_name(result: pb.TargetResult) -> str:
    """For an audit line."""
    return (result.replica_id or result.gateway_id) + (" (failed)" if result.HasField("failure") else "")


def _flushed(result: pb.FlushResult) -> str:
    return result.replica_id + (" (failed)" if result.HasField("failure") else "")
