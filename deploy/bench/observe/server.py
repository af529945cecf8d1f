"""The server's own account during a run, from the operator's port: batch size, queue, KV blocks, preemptions.

A server that has no such port, or does not answer on it, is measured without: the reason stands in the result.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import msgspec

from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.load.clock import Clock
from deploy.bench.load.grpc_client import GrpcTarget, connect, describe_error, open_channel

SAMPLE_INTERVAL_S = 0.25
_CALL_TIMEOUT_S = 5.0
_MAX_SAMPLES = 100_000
_MAX_ITERATIONS = 500_000


class LoadSample(msgspec.Struct, frozen=True, array_like=True):
    """One moment, all replicas together. `at_ns` is the client's clock."""

    at_ns: int
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int
    iterations: int
    output_tokens: int
    cached_tokens: int
    prompt_tokens: int


class IterationSample(msgspec.Struct, frozen=True, array_like=True):
    """One iteration of one replica. `at_ns` is when the client heard of it."""

    at_ns: int
    num_seqs: int
    num_tokens: int
    num_prefill_tokens: int
    blocks_used: int
    device_ms: float
    total_ms: float


class ServerWatch(msgspec.Struct):
    """What was seen. Empty with a reason where nothing could be."""

    samples: list[LoadSample] = msgspec.field(default_factory=list)
    iterations: list[IterationSample] = msgspec.field(default_factory=list)
    missed: int = 0
    """Samples that could not be had: peaks may lie in these gaps."""
    config_revision: int | None = None
    why_none: str = ""
    why_no_iterations: str = ""


class ServerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What changed at the server between the first and the last sample, and how full it was in them."""

    iterations: int
    output_tokens: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    running_mean: float
    running_max: int
    waiting_max: int
    kv_used_share_mean: float
    kv_used_share_max: float
    missed_samples: int = 0
    """Where there are any, means and peaks are of what was seen only."""


@asynccontextmanager
async def watch_server(target: GrpcTarget | None, clock: Clock) -> AsyncIterator[ServerWatch]:
    """Samples the operator's port while the block runs, and once at its end. None: there is no such port.

    Raises TargetError when the connection cannot even be tried.
    """
    if target is None:
        reason = "no operator port was named"
        yield ServerWatch(why_none=reason, why_no_iterations=reason)
        return
    watcher = _Watcher(target, clock)
    try:
        await watcher.sample()
        tasks = [asyncio.create_task(watcher.keep_sampling()), asyncio.create_task(watcher.follow_iterations())]
        try:
            yield watcher.watch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await watcher.sample()
    finally:
        await watcher.close()


def sum_up(samples: Sequence[LoadSample], missed: int = 0) -> ServerTotals | None:
    """Changes from the first to the last sample, and means over all, `missed` not had; None for fewer than two."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    shares = [sample.blocks_used / sample.blocks_total if sample.blocks_total else 0.0 for sample in samples]
    return ServerTotals(
        iterations=last.iterations - first.iterations,
        output_tokens=last.output_tokens - first.output_tokens,
        preemptions=last.preemptions - first.preemptions,
        prompt_tokens=last.prompt_tokens - first.prompt_tokens,
        cached_tokens=last.cached_tokens - first.cached_tokens,
        running_mean=sum(sample.running for sample in samples) / len(samples),
        running_max=max(sample.running for sample in samples),
        waiting_max=max(sample.waiting for sample in samples),
        kv_used_share_mean=sum(shares) / len(shares),
        kv_used_share_max=max(shares),
        missed_samples=missed,
    )


class _Watcher:
    def __init__(self, target: GrpcTarget, clock: Clock) -> None:
        connection = connect(target)
        self.watch = ServerWatch()
        self._clock = clock
        self._metadata = connection.metadata
        self._channel = open_channel(connection)
        self._stub: ops_pb2_grpc.OpsServiceAsyncStub = ops_pb2_grpc.OpsServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def keep_sampling(self) -> None:
        while not self.watch.why_none and len(self.watch.samples) < _MAX_SAMPLES:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            await self.sample()

    async def sample(self) -> None:
        """One more; without the very first there is no account, and a later one that fails is a gap."""
        if self.watch.why_none:
            return
        request = ops_pb2.GetLoadRequest()
        try:
            answer = await self._stub.GetLoad(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if self.watch.samples:
                self.watch.missed += 1
            else:
                self.watch.why_none = describe_error(error)
            return
        replicas = [one for one in answer.replicas if one.state != ops_pb2.REPLICA_STATE_UNREACHABLE]
        if replicas:
            self.watch.config_revision = max(one.config_revision for one in replicas) or None
        self.watch.samples.append(_add_up(self._clock.now_ns(), replicas))

    async def follow_iterations(self) -> None:
        try:
            async for message in self._stub.WatchIterations(ops_pb2.WatchIterationsRequest(), metadata=self._metadata):
                now_ns = self._clock.now_ns()
                self.watch.iterations += [_to_sample(now_ns, one) for one in message.iterations]
                if len(self.watch.iterations) > _MAX_ITERATIONS:
                    self.watch.why_no_iterations = f"only the first {_MAX_ITERATIONS} are kept"
                    return
        except grpc.aio.AioRpcError as error:
            self.watch.why_no_iterations = describe_error(error)


def _add_up(at_ns: int, replicas: Sequence[ops_pb2.ReplicaLoad]) -> LoadSample:
    return LoadSample(
        at_ns,
        sum(one.num_running for one in replicas),
        sum(one.num_waiting for one in replicas),
        sum(one.kv_blocks.used for one in replicas),
        sum(one.kv_blocks.total for one in replicas),
        sum(one.totals.preemptions for one in replicas),
        sum(one.totals.iterations for one in replicas),
        sum(one.totals.output_tokens for one in replicas),
        sum(one.totals.cached_tokens for one in replicas),
        sum(one.totals.prompt_tokens for one in replicas),
    )


def _to_sample(at_ns: int, one: ops_pb2.Iteration) -> IterationSample:
    return IterationSample(
        at_ns,
        one.num_seqs,
        one.num_tokens,
        one.num_prefill_tokens,
        one.kv_blocks.used,
        one.device_ms,
        one.total_ms,
    )
