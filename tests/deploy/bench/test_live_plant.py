"""Tuning a server that runs: knobs move under a guard, and whatever happens the server has its own again at the end."""

import asyncio
import os
import signal
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
from deploy.bench.tune.trial import KnobValue, Setting, SettingRefusedError, TuneObjectives, judge_trial
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
        self.max_num_seqs = 64
        self.answers: asyncio.Event | None = None
        """Changes are answered when it is set, where there is one."""
        self.changed = asyncio.Event()

    def _answer(self) -> list[ops_pb2.ReplicaConfig]:
        if self.refuses:
            failure = inference_pb2.Failure(reason="INVALID_CONFIG", message="too many")
            return [ops_pb2.ReplicaConfig(replica_id="r0", failure=failure)]
        return [ops_pb2.ReplicaConfig(replica_id="r0", current=self.revisions[-1])]

    def _revise(
        self, config: ops_pb2.SchedulingConfig, origin: "ops_pb2.ConfigOrigin.ValueType", actor: str = ""
    ) -> None:
        number = len(self.revisions) + 1
        self.revisions.append(ops_pb2.ConfigRevision(revision=number, config=config, origin=origin, actor=actor))

    async def GetConfig(self, request: Any, context: Any) -> ops_pb2.GetConfigResponse:
        return ops_pb2.GetConfigResponse(replicas=self._answer())

    async def UpdateConfig(self, request: Any, context: Any) -> ops_pb2.UpdateConfigResponse:
        await self._check_revision(request, context)
        if request.config.max_num_seqs > self.max_num_seqs:
            told = f"config.max_num_seqs: the worker was started for {self.max_num_seqs} at most"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
        self.updates.append(request)
        config = ops_pb2.SchedulingConfig()
        config.CopyFrom(self.revisions[-1].config)
        for path in request.update_mask.paths:
            setattr(config, path, getattr(request.config, path))
        self._revise(config, ops_pb2.CONFIG_ORIGIN_UPDATE)
        self.changed.set()
        if self.answers is not None:
            await self.answers.wait()
        return ops_pb2.UpdateConfigResponse(replicas=self._answer())

    async def RollbackConfig(self, request: Any, context: Any) -> ops_pb2.RollbackConfigResponse:
        await self._check_revision(request, context)
        self._revise(self.revisions[request.revision - 1].config, ops_pb2.CONFIG_ORIGIN_ROLLBACK)
        return ops_pb2.RollbackConfigResponse(replicas=self._answer())

    async def _check_revision(self, request: Any, context: Any) -> None:
        current = self.revisions[-1].revision
        if not request.HasField("expected_revision") or request.expected_revision != current:
            await context.abort(grpc.StatusCode.ABORTED, f"revision {current} is in force")

    def change_by_hand(self, seats: int) -> None:
        """As another operator does."""
        config = ops_pb2.SchedulingConfig()
        config.CopyFrom(self.revisions[-1].config)
        config.max_num_seqs = seats
        self._revise(config, ops_pb2.CONFIG_ORIGIN_UPDATE, "ann")

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
        facts = await plant.describe()
        assert facts.knobs == setting(8).knobs
        assert facts.defaults == {"itl_target_ms": float("inf")}
        await plant.run(setting(8), 0)
        assert operator.updates == []
        run = await plant.run(setting(16, itl_target_ms=40.0), 0)
        assert len(run.result.records) == 4
        assert run.violations == ()
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


async def test_a_trial_that_the_guard_took_back_is_not_chosen_and_the_next_sets_its_knobs_anew(
    operator: Operator,
) -> None:
    async with running_server(operator) as plant, plant:
        await plant.run(setting(32), 0)
        operator.take_back()
        run = await plant.run(setting(32), 1)
        assert run.violations == ("the server's guard took the change back during this trial",)
        assert not judge_trial(setting(32), run, OBJECTIVES).is_feasible
        assert (await plant.run(setting(32), 2)).violations == ()
        assert operator.seats == 32
        operator.take_back()
        assert (await plant.run(setting(16), 0)).violations == ()
        assert operator.seats == 16
    assert operator.seats == 8


async def test_a_setting_that_the_server_does_not_take_is_one_that_cannot_be_chosen(operator: Operator) -> None:
    async with running_server(operator) as plant, plant:
        with pytest.raises(SettingRefusedError, match="started for 64 at most"):
            await plant.run(setting(128), 0)
        assert (await plant.run(setting(64), 0)).violations == ()
    assert operator.seats == 8


async def test_what_somebody_else_changed_ends_the_search_and_stays(operator: Operator) -> None:
    async def search(plant: LivePlant) -> None:
        async with plant:
            await plant.run(setting(32), 0)
            operator.change_by_hand(24)
            await plant.run(setting(16), 0)

    async with running_server(operator) as plant:
        with pytest.raises(TargetError, match="somebody else made revision 3 by ann"):
            await search(plant)
    assert operator.seats == 24


async def test_knobs_go_back_when_what_was_chosen_is_refused(operator: Operator) -> None:
    async def search(plant: LivePlant) -> None:
        async with plant:
            await plant.run(setting(32), 0)
            plant.keep(setting(64).knobs)
            operator.max_num_seqs = 48

    async with running_server(operator) as plant:
        with pytest.raises(SettingRefusedError):
            await search(plant)
    assert operator.seats == 8


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
async def test_knobs_go_back_when_told_to_end(operator: Operator, end: signal.Signals) -> None:
    async def search(plant: LivePlant) -> None:
        async with plant:
            await plant.run(setting(32), 0)
            os.kill(os.getpid(), end)
            await asyncio.Event().wait()

    async with running_server(operator) as plant:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(search(plant))
    assert operator.seats == 8


async def test_a_change_that_is_on_its_way_when_told_to_end_goes_back_too(operator: Operator) -> None:
    """It is in force, but its answer has not come: it is ours all the same."""
    operator.answers = asyncio.Event()

    async def search(plant: LivePlant) -> None:
        async with plant:
            await plant.run(setting(32), 0)

    async with running_server(operator) as plant:
        searching = asyncio.create_task(search(plant))
        await operator.changed.wait()
        searching.cancel()
        operator.answers.set()
        with pytest.raises(asyncio.CancelledError):
            await searching
    assert operator.seats == 8


async def test_a_refusal_is_told_by_its_replica(operator: Operator) -> None:
    async with running_server(operator) as plant:
        operator.refuses = True
        with pytest.raises(TargetError, match="r0: INVALID_CONFIG: too many"):
            async with plant:
                pass
