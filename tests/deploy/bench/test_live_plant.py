"""Tuning a server that runs: knobs move under a guard, and whatever happens the server has its own again at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from chairlift.v1 import inference_pb2, ops_pb2, ops_pb2_grpc
from deploy.bench.load.client import TargetError
from deploy.bench.load.grpc_client import GrpcTarget
from deploy.bench.stand_in import Script, start_stand_in
from deploy.bench.tune.live_plant import LivePlant
from deploy.bench.tune.plant import TrialLoad
from deploy.bench.tune.trial import KnobValue, Setting, TuneObjectives
from deploy.bench.workload.catalogue import WorkloadOptions

LOAD = TrialLoad(workload="short-short", options=WorkloadOptions(), num_requests=4, num_warmups=0, timeout_s=20.0)
OBJECTIVES = TuneObjectives(ttft_p99_ms=1000, itl_p99_ms=50)


class Operator(ops_pb2_grpc.OpsServiceServicer):
    """One replica's revisions, in memory."""

    def __init__(self) -> None:
        start = ops_pb2.SchedulingConfig(max_num_seqs=8, max_num_batched_tokens=512, itl_target_ms=0.0)
        self.revisions = [ops_pb2.ConfigRevision(revision=1, config=start, origin=ops_pb2.CONFIG_ORIGIN_START)]
        self.updates: list[ops_pb2.UpdateConfigRequest] = []
        self.refuses = False

    def _answer(self) -> list[ops_pb2.ReplicaConfig]:
        if self.refuses:
            failure = inference_pb2.Failure(reason="INVALID_CONFIG", message="too many")
            return [ops_pb2.ReplicaConfig(replica_id="r0", failure=failure)]
        return [ops_pb2.ReplicaConfig(replica_id="r0", current=self.revisions[-1])]

    def _revise(self, config: ops_pb2.SchedulingConfig, origin: "ops_pb2.ConfigOrigin.ValueType") -> None:
        number = len(self.revisions) + 1
        self.revisions.append(ops_pb2.ConfigRevision(revision=number, config=config, origin=origin))

    async def GetConfig(self, request: Any, context: Any) -> ops_pb2.GetConfigResponse:
        return ops_pb2.GetConfigResponse(replicas=self._answer())

    async def UpdateConfig(self, request: Any, context: Any) -> ops_pb2.UpdateConfigResponse:
        self.updates.append(request)
        if not self.refuses:
            config = ops_pb2.SchedulingConfig()
            config.CopyFrom(self.revisions[-1].config)
            for path in request.update_mask.paths:
                setattr(config, path, getattr(request.config, path))
            self._revise(config, ops_pb2.CONFIG_ORIGIN_UPDATE)
        return ops_pb2.UpdateConfigResponse(replicas=self._answer())

    async def RollbackConfig(self, request: Any, context: Any) -> ops_pb2.RollbackConfigResponse:
        self._revise(self.revisions[request.revision - 1].config, ops_pb2.CONFIG_ORIGIN_ROLLBACK)
        return ops_pb2.RollbackConfigResponse(replicas=self._answer())

    def take_back(self) -> None:
        """As a guard does."""
        self._revise(self.revisions[-2].config, ops_pb2.CONFIG_ORIGIN_GUARD)

    @property
    def seats(self) -> int:
        return self.revisions[-1].config.max_num_seqs


@pytest.fixture
def operator() -> Operator:
    return Operator()  # type: ignore[abstract]  # the other methods are not called


@asynccontextmanager
async def running_server(operator: Operator) -> AsyncIterator[LivePlant]:
    public, address = await start_stand_in(Script(itl_ms=1.0))
    server = grpc.aio.server()
    ops_pb2_grpc.add_OpsServiceServicer_to_server(operator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield LivePlant(GrpcTarget(address=address), GrpcTarget(address=f"127.0.0.1:{port}"), LOAD, OBJECTIVES)
    finally:
        await server.stop(grace=0)
        await public.stop(grace=0)


def setting(seats: int, **knobs: KnobValue) -> Setting:
    values = {"max_num_seqs": seats, "max_num_batched_tokens": 512, "itl_target_ms": None} | knobs
    return Setting(knobs=values, concurrency=2)


async def test_knobs_move_under_a_guard_and_are_put_back(operator: Operator) -> None:
    async with running_server(operator) as plant, plant:
        assert await plant.start_values() == setting(8).knobs
        await plant.run(setting(8), 0)
        assert operator.updates == []
        result = await plant.run(setting(16, itl_target_ms=40.0), 0)
        assert len(result.records) == 4
        assert operator.seats == 16
        (update,) = operator.updates
        assert sorted(update.update_mask.paths) == ["itl_target_ms", "max_num_seqs"]
        assert update.guard.bound == 150
        await plant.run(setting(16), 0)
        assert operator.revisions[-1].config.itl_target_ms == 0
    assert operator.seats == 8
    assert operator.revisions[-1].origin == ops_pb2.CONFIG_ORIGIN_ROLLBACK


async def test_a_search_that_is_broken_off_puts_them_back_too(operator: Operator) -> None:
    async def search() -> None:
        async with running_server(operator) as plant, plant:
            await plant.run(setting(32), 0)
            plant.keep(setting(32).knobs)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await search()
    assert operator.seats == 8


async def test_what_was_chosen_can_stay(operator: Operator) -> None:
    async with running_server(operator) as plant, plant:
        await plant.run(setting(32), 0)
        plant.keep(setting(16).knobs)
    assert operator.seats == 16
    assert operator.updates[-1].HasField("guard")


async def test_a_guard_that_took_a_trial_back_is_told_and_the_next_trial_sets_its_knobs_anew(
    operator: Operator,
) -> None:
    async with running_server(operator) as plant, plant:
        await plant.run(setting(32), 0)
        operator.take_back()
        result = await plant.run(setting(32), 1)
        assert result.warnings[-1] == "the server's guard took the change back during this trial"
        await plant.run(setting(32), 2)
        assert operator.seats == 32
    assert operator.seats == 8


async def test_a_refusal_is_told_by_its_replica(operator: Operator) -> None:
    async with running_server(operator) as plant:
        operator.refuses = True
        with pytest.raises(TargetError, match="r0: INVALID_CONFIG: too many"):
            async with plant:
                pass
