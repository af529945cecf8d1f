"""What is tuned: an interface, stacks of one's own, the simulator, and a live server by its operator's port."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

import grpc.aio
import msgspec
from google.protobuf import duration_pb2, field_mask_pb2

from chairlift.runtime.settings import SchedulerSettings, Settings
from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.errors import BenchError
from deploy.bench.load.client import TargetModel
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget, connect, describe_error, open_channel
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.result import RunResult
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.replica import simulate
from deploy.bench.stack import OwnStack, describe_settings, run_own_stack
from deploy.bench.tune.search import Ladder
from deploy.bench.tune.trial import KnobValue, Setting, TuneObjectives
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.request import Workload

WARMUP_SEED_STEP = 1_000_003
GUARD_FACTOR = 5.0
"""A live change is taken back by the server itself when p99 ITL passes so many times the objective."""
GUARD_WINDOW_S = 600
_CALL_TIMEOUT_S = 10.0

LADDERS = {
    "max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256),
    "itl_target_ms": (10.0, 20.0, 40.0, 80.0, 160.0),
}


class PlantError(BenchError):
    """The server does not let itself be tuned. The message says why."""


class TrialLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a trial, but for its concurrency."""

    workload: str
    options: WorkloadOptions
    num_requests: int
    """At least; more users than that make one request each."""
    num_warmups: int
    timeout_s: float

    def draw(self, model: TargetModel, seed_shift: int) -> Workload:
        """The workload as the model can take it. Raises WorkloadError."""
        options = msgspec.structs.replace(
            self.options,
            seed=self.options.seed + seed_shift,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
        )
        return find_workload(self.workload, options)


class Plant(Protocol):
    """A server whose knobs can be set. An async context manager: at its end the server is as it was, or gone."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def start_values(self) -> dict[str, KnobValue]:
        """The knobs that can be moved, with their values as things are. Raises PlantError."""

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """One trial. Raises PlantError."""


def make_ladders(start: dict[str, KnobValue], bounds: dict[str, tuple[float, float]]) -> list[Ladder]:
    """A ladder for each knob of `start` that has one, cut to the user's bounds by name."""
    found = []
    for name, values in LADDERS.items():
        if name in start:
            low, high = bounds.get(name, (0.0, float("inf")))
            rungs = tuple(value for value in values if low <= value <= high)
            found.append(Ladder(name=name, values=rungs, start=start[name]))
    return found


def plan_trial(load: TrialLoad, setting: Setting, repetition: int, model: TargetModel) -> Measurement:
    """One run in a closed loop. Raises WorkloadError."""
    plan = LoadPlan(
        concurrency=setting.concurrency,
        num_sessions=max(load.num_requests, setting.concurrency),
        timeout_s=load.timeout_s,
    )
    return Measurement(
        backend="chairlift",
        model=model,
        workload=load.draw(model, repetition),
        plan=plan,
        warmup=load.draw(model, repetition + WARMUP_SEED_STEP),
        num_warmups=load.num_warmups,
    )


class OwnStackPlant:
    """Starts a stack for each change of knobs, and keeps it while only the load changes."""

    def __init__(self, settings: Settings, load: TrialLoad) -> None:
        self._settings = settings
        self._load = load
        self._exit = AsyncExitStack()
        self._running: tuple[dict[str, KnobValue], OwnStack, GrpcClient] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, traceback)

    async def start_values(self) -> dict[str, KnobValue]:
        """From the settings."""
        return _knobs_of(self._settings)

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """See `Plant`. Raises what the launcher raises."""
        if self._running is None or self._running[0] != setting.knobs:
            await self._exit.aclose()
            self._running = None
            stack = await self._exit.enter_async_context(run_own_stack(_with_knobs(self._settings, setting.knobs)))
            client = GrpcClient(stack.target, MonotonicClock())
            self._exit.push_async_callback(client.close)
            self._running = (setting.knobs, stack, client)
        _, stack, client = self._running
        wanted = plan_trial(self._load, setting, repetition, await client.describe())
        wanted = msgspec.structs.replace(wanted, ops=stack.ops, settings=stack.settings, is_own_stack=True)
        return await measure(client, wanted, MonotonicClock())


class SimulatedPlant:
    """A fresh simulated replica for each trial, in virtual time: for a dry run."""

    def __init__(self, settings: Settings, load: TrialLoad, cost: DeviceCost) -> None:
        self._settings = settings
        self._load = load
        self._cost = cost

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is left."""

    async def start_values(self) -> dict[str, KnobValue]:
        """From the settings."""
        return _knobs_of(self._settings)

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """See `Plant`. Computes in a thread: the simulator has an event loop of its own."""
        settings = _with_knobs(self._settings, setting.knobs)

        def prepare(model: TargetModel) -> Measurement:
            wanted = plan_trial(self._load, setting, repetition, model)
            return msgspec.structs.replace(wanted, backend="simulator", settings=describe_settings(settings))

        return await asyncio.to_thread(simulate, settings, self._cost, prepare)


class LivePlant:
    """A server that runs elsewhere: knobs by UpdateConfig under a guard, rolled back at the end unless kept."""

    def __init__(
        self,
        target: GrpcTarget,
        ops: GrpcTarget,
        load: TrialLoad,
        objectives: TuneObjectives,
    ) -> None:
        """Connects with the first call. Raises TargetError."""
        self._ops_target = ops
        self._load = load
        self._objectives = objectives
        self._client = GrpcClient(target, MonotonicClock())
        connection = connect(ops)
        self._metadata = connection.metadata
        self._channel = open_channel(connection)
        self._ops: ops_pb2_grpc.OpsServiceAsyncStub = ops_pb2_grpc.OpsServiceStub(self._channel)
        self._start_revision: int | None = None
        self._in_force: dict[str, KnobValue] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._in_force is not None:
                await self._roll_back()
        finally:
            await self._client.close()
            await self._channel.close()

    async def start_values(self) -> dict[str, KnobValue]:
        """From the configuration in force, whose revision is the rollback point."""
        try:
            answer = await self._ops.GetConfig(
                ops_pb2.GetConfigRequest(), metadata=self._metadata, timeout=_CALL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise PlantError(f"no live configuration at {self._ops_target.address}: {describe_error(error)}") from None
        if len(answer.replicas) != 1:
            raise PlantError(f"{len(answer.replicas)} replicas: tune one at a time")
        current = answer.replicas[0].current
        self._start_revision = current.revision
        told = {field.name: value for field, value in current.config.ListFields()}
        return {name: told.get(name) for name in LADDERS}

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """See `Plant`."""
        if self._in_force != setting.knobs:
            await self._apply(setting.knobs)
        wanted = plan_trial(self._load, setting, repetition, await self._client.describe())
        return await measure(self._client, msgspec.structs.replace(wanted, ops=self._ops_target), MonotonicClock())

    async def _apply(self, knobs: dict[str, KnobValue]) -> None:
        moved = {name: value for name, value in knobs.items() if value is not None}
        guard = ops_pb2.Guard(
            metric=ops_pb2.GUARD_METRIC_ITL_P99_MS,
            bound=self._objectives.itl_p99_ms * GUARD_FACTOR,
            window=duration_pb2.Duration(seconds=GUARD_WINDOW_S),
        )
        config = ops_pb2.SchedulingConfig()
        for name, value in moved.items():
            setattr(config, name, value)
        request = ops_pb2.UpdateConfigRequest(
            config=config,
            update_mask=field_mask_pb2.FieldMask(paths=sorted(moved)),
            replica_id="all",
            guard=guard,
            comment="chairlift tune",
        )
        try:
            answer = await self._ops.UpdateConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise PlantError(f"the change was refused: {describe_error(error)}") from None
        _raise_failures(answer.replicas)
        self._in_force = knobs

    async def _roll_back(self) -> None:
        request = ops_pb2.RollbackConfigRequest(
            replica_id="all", revision=self._start_revision, comment="chairlift tune: as it was before"
        )
        try:
            answer = await self._ops.RollbackConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise PlantError(
                f"the configuration is not as it was (revision {self._start_revision}): {describe_error(error)}"
            ) from None
        _raise_failures(answer.replicas)


def _raise_failures(replicas: Sequence[ops_pb2.ReplicaConfig]) -> None:
    for one in replicas:
        if one.HasField("failure"):
            raise PlantError(f"{one.replica_id}: {one.failure.reason}: {one.failure.message}")


def _knobs_of(settings: Settings) -> dict[str, KnobValue]:
    scheduler = settings.scheduler
    return {name: getattr(scheduler, name) for name in LADDERS if name in SchedulerSettings.__struct_fields__}


def _with_knobs(settings: Settings, knobs: dict[str, KnobValue]) -> Settings:
    return msgspec.structs.replace(settings, scheduler=msgspec.structs.replace(settings.scheduler, **knobs))
