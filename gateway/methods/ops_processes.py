"""`GetServerInfo` and `SetLogLevel`: the processes of this deployment, as far as this gateway knows them."""

import asyncio
import time

from google.protobuf.timestamp_pb2 import Timestamp

from chairlift.ipc import front, operator
from chairlift.ipc.common import ProcessFacts
from chairlift.runtime.build import process_facts
from chairlift.runtime.telemetry import log_level, set_log_level
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas
from gateway.methods.ops_access import audit, check_comment
from gateway.methods.ops_changes import find_targets, target_name, unreachable
from gateway.methods.ops_reads import GatewayIdentity
from gateway.validation.violations import Violations, duration_ns, refuse_unknown_fields

_LEVELS: dict[int, str] = {
    pb.LOG_LEVEL_DEBUG: "debug",
    pb.LOG_LEVEL_INFO: "info",
    pb.LOG_LEVEL_WARNING: "warning",
    pb.LOG_LEVEL_ERROR: "error",
}


class ServerInfoMethod:
    """Serves `GetServerInfo`."""

    def __init__(self, identity: GatewayIdentity, replicas: Replicas) -> None:
        self._identity = identity
        self._replicas = replicas

    async def __call__(self, request: pb.GetServerInfoRequest, _: Call) -> pb.GetServerInfoResponse:
        """This gateway and its replicas' processes. Raises ApiError for an unknown replica."""
        refuse_unknown_fields(request)
        identity = self._identity
        links = [link for link in self._replicas.find(request.replica_id) if link.hello is not None]
        return pb.GetServerInfoResponse(
            gateway_id=identity.gateway_id,
            gateway=_process(process_facts(identity.epoch, identity.started_ns)),
            replicas=await asyncio.gather(*map(self._replica, links)),
        )

    async def _replica(self, link: ReplicaLink) -> pb.ReplicaInfo:
        """Of one that does not answer: what its hello said."""
        reply = await self._replicas.ask(link, operator.ServerInfoQuery)
        info = pb.ReplicaInfo(
            replica_id=link.replica_id,
            model=link.model.model if link.model is not None else "",
            model_fingerprint=link.model.fingerprint if link.model is not None else "",
        )
        if isinstance(reply, operator.ServerInfoReply):
            info.scheduler.CopyFrom(_process(reply.scheduler))
            info.workers.extend(map(_process, reply.workers))
        elif link.hello is not None:
            hello = link.hello
            info.scheduler.CopyFrom(pb.ProcessInfo(ipc_version=f"{hello.major}.{hello.minor}", epoch=hello.epoch))
        return info


class LogLevelMethod:
    """Serves `SetLogLevel`."""

    def __init__(self, identity: GatewayIdentity, replicas: Replicas) -> None:
        self._identity = identity
        self._replicas = replicas
        self._earlier_level = ""
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, request: pb.SetLogLevelRequest, call: Call) -> pb.SetLogLevelResponse:
        """Changes what is logged. Raises ApiError."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_comment(request.comment, violations)
        level = _LEVELS.get(request.level)
        violations.check(level is not None, "level", f"must be one of {', '.join(_LEVELS.values())}")
        duration = None
        if request.HasField("duration"):
            duration = duration_ns(violations, request.duration, "duration", may_be_zero=False)
        violations.raise_if_any()
        assert level is not None
        links, is_here = find_targets(request, self._replicas, self._identity)

        async def change(link: ReplicaLink) -> pb.TargetResult:
            reply = await self._replicas.ask(link, lambda query: operator.LogLevelCommand(query, level, duration))
            match reply:
                case front.LoadReply():
                    return pb.TargetResult(replica_id=link.replica_id)
                case front.QueryFailed(_, reason, message):
                    failure = inference_pb2.Failure(reason=reason, message=message)
                    return pb.TargetResult(replica_id=link.replica_id, failure=failure)
                case _:
                    return pb.TargetResult(replica_id=link.replica_id, failure=unreachable())

        results = list(await asyncio.gather(*map(change, links)))
        if is_here:
            self._change_here(level, duration)
            results.append(pb.TargetResult(gateway_id=self._identity.gateway_id))
        audit(call, "SetLogLevel", request.comment, map(target_name, results), level=level)
        return pb.SetLogLevelResponse(results=results)

    def _change_here(self, level: str, duration: int | None) -> None:
        if self._timer is None:
            self._earlier_level = log_level()
        else:
            self._timer.cancel()
            self._timer = None
        set_log_level(level)
        if duration is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(duration / 1e9, self._bring_back)

    def _bring_back(self) -> None:
        self._timer = None
        set_log_level(self._earlier_level)


def _process(facts: ProcessFacts) -> pb.ProcessInfo:
    started = Timestamp()
    if facts.uptime_ns:
        started.FromNanoseconds(time.time_ns() - facts.uptime_ns)
    return pb.ProcessInfo(
        version=facts.version,
        commit=facts.commit,
        ipc_version=facts.ipc_version,
        start_time=started if facts.uptime_ns else None,
        uptime_ms=facts.uptime_ns / 1e6,
        epoch=facts.epoch,
        host=facts.host,
        pid=facts.pid,
    )
