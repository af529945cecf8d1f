"""`GetLoad` and `WatchLoad`: load by the schedulers' own counts."""

import asyncio
import time

import msgspec

from chairlift.ipc import front
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.gate import Gate
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas
from gateway.streams.generation_table import GenerationTable
from gateway.validation.violations import Violations, duration_ns, refuse_unknown_fields

_MIN_INTERVAL_S = 0.1
_DEFAULT_INTERVAL_S = 1.0


class GatewayIdentity(msgspec.Struct, frozen=True):
    """This process, for answers."""

    gateway_id: str
    epoch: int
    started_ns: int
    """A reading of the monotonic clock."""


class LoadReader:
    """Asks replicas for their load."""

    def __init__(self, identity: GatewayIdentity, replicas: Replicas, table: GenerationTable, gate: Gate) -> None:
        self._identity = identity
        self._replicas = replicas
        self._table = table
        self._gate = gate

    async def read(self, replica_id: str) -> list[pb.ReplicaLoad]:
        """One entry a replica, also for one that does not answer. Raises ApiError for an unknown replica."""
        return list(await asyncio.gather(*(self._read_one(link) for link in self._replicas.find(replica_id))))

    def own(self) -> pb.GatewayLoad:
        """This gateway's load."""
        return pb.GatewayLoad(
            gateway_id=self._identity.gateway_id,
            open_streams=self._table.num_open,
            is_draining=self._gate.is_draining,
        )

    async def _read_one(self, link: ReplicaLink) -> pb.ReplicaLoad:
        reply = await self._replicas.ask(link, front.LoadQuery)
        if isinstance(reply, front.LoadReply):
            return load_of(link, reply.load, ready=reply.ready, draining=reply.draining, age_ms=0.0)
        age_ms = (time.monotonic() - link.load_at) * 1e3 if link.load_at else None
        load = load_of(link, link.load, ready=False, draining=False, age_ms=age_ms)
        load.state = pb.REPLICA_STATE_UNREACHABLE
        return load


class LoadMethod:
    """Serves `GetLoad`."""

    def __init__(self, reader: LoadReader) -> None:
        self._reader = reader

    async def __call__(self, request: pb.GetLoadRequest, _: Call) -> pb.GetLoadResponse:
        """Load of replicas and of this gateway, now. Raises ApiError for an unknown replica."""
        refuse_unknown_fields(request)
        return pb.GetLoadResponse(replicas=await self._reader.read(request.replica_id), gateway=self._reader.own())


class WatchLoadMethod:
    """Serves `WatchLoad`."""

    def __init__(self, reader: LoadReader) -> None:
        self._reader = reader

    async def __call__(self, request: pb.WatchLoadRequest, call: Call) -> None:
        """The same again and again, until the client has enough. A slow watcher misses messages and is told so."""
        refuse_unknown_fields(request)
        interval_s = _interval_s(request)
        due = time.monotonic()
        while True:
            num_missed = int((time.monotonic() - due) / interval_s)
            due += (num_missed + 1) * interval_s
            response = pb.WatchLoadResponse(
                replicas=await self._reader.read(request.replica_id), gateway=self._reader.own(), num_missed=num_missed
            )
            await call.write(response.SerializeToString())
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def load_of(
    link: ReplicaLink, load: front.Load, *, ready: bool, draining: bool, age_ms: float | None
) -> pb.ReplicaLoad:
    """A replica's counts as a message."""
    workers = []
    if load.worker_epoch:
        workers = [
            pb.WorkerStatus(
                world_size=1,
                epoch=load.worker_epoch,
                state=pb.WORKER_STATE_BUSY if load.running else pb.WORKER_STATE_IDLE,
                device=link.model.device if link.model is not None else "",
                num_restarts=load.worker_losses,
            )
        ]
    return pb.ReplicaLoad(
        replica_id=link.replica_id,
        scheduler_epoch=link.scheduler_epoch,
        state=_state(load, ready=ready, draining=draining, has_model=link.model is not None),
        workers=workers,
        num_running=load.running,
        num_waiting=load.waiting,
        num_preempted=load.preempted,
        num_swapped=load.swapped,
        queued_tokens=load.queued_tokens,
        kv_blocks=_kv_blocks(link, load),
        totals=pb.LoadTotals(
            iterations=load.steps,
            requests_accepted=load.requests_accepted,
            requests_refused=load.requests_refused,
            requests_ended=load.requests_ended,
            prompt_tokens=load.prompt_tokens,
            cached_tokens=load.cached_tokens,
            output_tokens=load.output_tokens,
            preemptions=load.preemptions,
            discarded_rows=load.discarded_rows,
        ),
        num_gateways=load.attached_gateways,
        config_revision=load.config_revision,
        age_ms=age_ms,
    )


def _kv_blocks(link: ReplicaLink, load: front.Load) -> pb.KvBlocks:
    return pb.KvBlocks(
        total=load.blocks_total,
        free=load.blocks_free,
        cached=load.blocks_cached,
        used=load.blocks_used,
        block_size=link.limits.block_size if link.limits is not None else 0,
        host_total=load.host_blocks_total,
        host_used=load.host_blocks_used,
    )


def _state(load: front.Load, *, ready: bool, draining: bool, has_model: bool) -> pb.ReplicaState.ValueType:
    if draining:
        return pb.REPLICA_STATE_DRAINING
    if not has_model:
        return pb.REPLICA_STATE_STARTING
    return pb.REPLICA_STATE_READY if ready and load.worker_epoch else pb.REPLICA_STATE_WORKER_LOST


def _interval_s(request: pb.WatchLoadRequest) -> float:
    if not request.HasField("interval"):
        return _DEFAULT_INTERVAL_S
    violations = Violations()
    interval_ns = duration_ns(violations, request.interval, "interval", may_be_zero=False)
    violations.raise_if_any()
    return max(_MIN_INTERVAL_S, interval_ns / 1e9)
