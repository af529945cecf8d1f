"""`WatchIterations`: the batch, iteration by iteration, for whoever wants to see it."""

import math
import time

from google.protobuf.timestamp_pb2 import Timestamp

from chairlift.ipc import operator
from chairlift.ipc.operator import MAX_ITERATIONS_PER_SECOND
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.link.iterations import Batch, Watcher
from gateway.link.replicas import Replicas
from gateway.methods.ops_access import Veil
from gateway.validation.violations import Violations

_ITERATIONS_A_MESSAGE = 16


class WatchIterationsMethod:
    """Serves `WatchIterations`."""

    def __init__(self, replicas: Replicas, veil: Veil) -> None:
        self._replicas = replicas
        self._veil = veil

    async def __call__(self, request: pb.WatchIterationsRequest, call: Call) -> None:
        """Tells iterations until the client has enough. What a slow watcher misses is counted. Raises ApiError."""
        rate = _rate(request)
        self._replicas.find(request.replica_id)
        watcher = Watcher(request.replica_id, rate, include_riders=request.include_riders)
        is_seen = self._veil.is_transparent_to(call)
        hub = self._replicas.iterations
        hub.join(watcher)
        try:
            while True:
                for batch in await watcher.take():
                    await self._write(batch, call, is_seen=is_seen, with_riders=request.include_riders)
        finally:
            hub.leave(watcher)

    async def _write(self, batch: Batch, call: Call, *, is_seen: bool, with_riders: bool) -> None:
        num_missed = batch.num_missed
        for start in range(0, len(batch.iterations), _ITERATIONS_A_MESSAGE):
            part = batch.iterations[start : start + _ITERATIONS_A_MESSAGE]
            response = pb.WatchIterationsResponse(
                replica_id=batch.replica_id,
                iterations=[self._iteration(one, is_seen=is_seen, with_riders=with_riders) for one in part],
                num_missed=num_missed,
            )
            num_missed = 0
            await call.write(response.SerializeToString())

    def _rider(self, rider: operator.Rider, *, is_seen: bool) -> pb.Rider:
        sequence = self._veil.sequence(rider.sequence, is_seen=is_seen)
        return pb.Rider(sequence=sequence, num_tokens=rider.num_tokens, is_sampling=rider.is_sampling)

    def _iteration(self, iteration: operator.Iteration, *, is_seen: bool, with_riders: bool) -> pb.Iteration:
        veil = self._veil
        planned = Timestamp()
        planned.FromNanoseconds(time.time_ns() - iteration.age_ns)
        riders = iteration.riders if with_riders else ()
        return pb.Iteration(
            worker_epoch=iteration.worker_epoch,
            step=iteration.step,
            plan_time=planned,
            riders=[self._rider(rider, is_seen=is_seen) for rider in riders],
            boarded=[veil.sequence(name, is_seen=is_seen) for name in iteration.boarded],
            departed=[
                pb.Departure(
                    sequence=veil.sequence(one.sequence, is_seen=is_seen),
                    reason=inference_pb2.FinishReason.ValueType(one.reason),
                )
                for one in iteration.departed
            ],
            preempted=[
                pb.Preemption(sequence=veil.sequence(one.sequence, is_seen=is_seen), mode=_mode(one))
                for one in iteration.displaced
            ],
            num_tokens=iteration.num_tokens,
            num_prefill_tokens=iteration.num_prefill_tokens,
            token_budget=iteration.token_budget,
            num_seqs=iteration.num_seqs,
            max_num_seqs=iteration.max_num_seqs,
            num_waiting=iteration.num_waiting,
            kv_blocks=_blocks(iteration.blocks),
            plan_ms=iteration.plan_ns / 1e6,
            device_ms=iteration.device_ns / 1e6,
            total_ms=iteration.total_ns / 1e6,
            num_discarded_rows=iteration.num_discarded_rows,
            config_revision=iteration.config_revision,
        )


def _blocks(blocks: operator.Blocks) -> pb.KvBlocks:
    return pb.KvBlocks(
        total=blocks.total,
        free=blocks.free,
        cached=blocks.cached,
        used=blocks.used,
        block_size=blocks.block_size,
        host_total=blocks.host_total,
        host_used=blocks.host_used,
    )


def _mode(displacement: operator.Displacement) -> pb.PreemptionMode.ValueType:
    return pb.PREEMPTION_MODE_SWAP if displacement.is_swapped else pb.PREEMPTION_MODE_RECOMPUTE


def _rate(request: pb.WatchIterationsRequest) -> float:
    violations = Violations()
    violations.check_unknown_fields(request, "")
    rate = request.max_per_second if request.HasField("max_per_second") else MAX_ITERATIONS_PER_SECOND
    violations.check(math.isfinite(rate) and rate > 0, "max_per_second", "must be above 0")
    violations.raise_if_any()
    return min(rate, MAX_ITERATIONS_PER_SECOND)
