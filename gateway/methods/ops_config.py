"""What the operator may see of the scheduling configuration."""

import asyncio
import time

from google.protobuf.timestamp_pb2 import Timestamp

from chairlift.ipc import operator
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Replicas
from gateway.methods.ops_changes import unreachable

_BATCHING = {"continuous": pb.BATCHING_MODE_CONTINUOUS, "static": pb.BATCHING_MODE_STATIC}
_POLICIES = {
    "fcfs": pb.SCHEDULING_POLICY_FCFS,
    "priority": pb.SCHEDULING_POLICY_PRIORITY,
    "fair": pb.SCHEDULING_POLICY_FAIR,
    "slo": pb.SCHEDULING_POLICY_SLO,
}
_PREEMPTION = {
    "auto": pb.PREEMPTION_MODE_AUTO,
    "recompute": pb.PREEMPTION_MODE_RECOMPUTE,
    "swap": pb.PREEMPTION_MODE_SWAP,
}


class GetConfigMethod:
    """Serves `GetConfig`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.GetConfigRequest, _: Call) -> pb.GetConfigResponse:
        """The revision in force of each replica; there are no others yet. Raises ApiError for an unknown replica."""
        links = self._replicas.find(request.replica_id)
        return pb.GetConfigResponse(replicas=await asyncio.gather(*(self._read(link) for link in links)))

    async def _read(self, link: ReplicaLink) -> pb.ReplicaConfig:
        reply = await self._replicas.ask(link, operator.ConfigQuery)
        if not isinstance(reply, operator.ConfigReply):
            return pb.ReplicaConfig(replica_id=link.replica_id, failure=unreachable())
        since = Timestamp()
        since.FromNanoseconds(time.time_ns() - reply.age_ns)
        revision = pb.ConfigRevision(
            revision=reply.revision, config=_config(reply.knobs), origin=pb.CONFIG_ORIGIN_START, time=since
        )
        return pb.ReplicaConfig(replica_id=link.replica_id, current=revision)


def _config(knobs: operator.SchedulingKnobs) -> pb.SchedulingConfig:
    return pb.SchedulingConfig(
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        block_size=knobs.block_size,
        long_prefill_token_threshold=knobs.long_prefill_token_threshold,
        watermark=knobs.watermark,
        max_num_queued_reqs=knobs.max_num_queued_reqs,
        max_num_queued_tokens=knobs.max_num_queued_tokens,
        enable_chunked_prefill=knobs.enable_chunked_prefill,
        enable_prefix_caching=knobs.enable_prefix_caching,
        batching=_BATCHING.get(knobs.batching),
        policy=_POLICIES.get(knobs.policy),
        preemption=_PREEMPTION.get(knobs.preemption),
        itl_target_ms=knobs.itl_target_ms,
        static_batch_size=knobs.static_batch_size,
        static_batch_wait_ms=knobs.static_batch_wait_ms,
        max_head_bypass_ms=knobs.max_head_bypass_ms,
    )
