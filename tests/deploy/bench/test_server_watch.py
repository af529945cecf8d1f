"""The server's own account during a run, by a real operator's port that fails now and then."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget
from deploy.bench.measure import Measurement, measure
from deploy.bench.observe.server import sum_up, watch_server
from deploy.bench.stand_in import Script, start_stand_in
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload


class Operator(ops_pb2_grpc.OpsServiceServicer):
    """Answers but for the calls of those numbers, from 1 on."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.num_calls = 0
        self.was_seen = asyncio.Event()

    async def GetLoad(self, request: Any, context: Any) -> ops_pb2.GetLoadResponse:
        self.num_calls += 1
        if self.num_calls in self.failing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "for a moment")
        if self.num_calls > 3:
            self.was_seen.set()
        return ops_pb2.GetLoadResponse(replicas=[ops_pb2.ReplicaLoad(replica_id="r0", num_running=self.num_calls)])


async def start(operator: Operator) -> tuple[grpc.aio.Server, GrpcTarget]:
    server = grpc.aio.server()
    ops_pb2_grpc.add_OpsServiceServicer_to_server(operator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, GrpcTarget(address=f"127.0.0.1:{port}")


@pytest.mark.timeout(20)
async def test_a_sample_that_fails_is_a_gap_and_no_end() -> None:
    operator = Operator(2)  # type: ignore[abstract]  # the other methods are not called
    server, target = await start(operator)
    try:
        async with watch_server(target, MonotonicClock()) as watch:
            await operator.was_seen.wait()
    finally:
        await server.stop(grace=0)
    assert (watch.missed, watch.why_none) == (1, "")
    totals = sum_up(watch.samples, watch.missed)
    assert totals is not None
    assert (totals.running_max, totals.missed_samples) == (operator.num_calls, 1)


async def test_a_result_warns_of_gaps_and_names_why_there_is_no_account_at_all() -> None:
    """The last look fails in the one run, the first in the other."""
    public, address = await start_stand_in(Script())
    client = GrpcClient(GrpcTarget(address=address), MonotonicClock())
    found = []
    try:
        for failing in (range(2, 1000), range(1, 1000)):
            operator = Operator(*failing)  # type: ignore[abstract]  # as above
            server, ops = await start(operator)
            wanted = Measurement(
                backend="stand-in",
                model=await client.describe(),
                workload=find_workload("short-short", WorkloadOptions()),
                plan=LoadPlan(concurrency=1, num_sessions=1),
                ops=ops,
            )
            found.append(await measure(client, wanted, MonotonicClock()))
            await server.stop(grace=0)
    finally:
        await client.close()
        await public.stop(grace=0)
    with_gaps, without = found
    assert any("looks at the server's account failed" in warning for warning in with_gaps.warnings)
    assert without.why_no_server == "UNAVAILABLE: for a moment"
    assert not any("account failed" in warning for warning in without.warnings)
