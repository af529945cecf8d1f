"""What is tuned: an interface, stacks of one's own, and the simulator."""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

import msgspec

from chairlift.runtime.settings import Settings
from deploy.bench.load.client import TargetModel
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.result import RunResult
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.replica import simulate
from deploy.bench.stack import OwnStack, describe_settings, run_own_stack
from deploy.bench.tune.search import Ladder
from deploy.bench.tune.trial import KnobValue, Setting
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.names import tenants_of
from deploy.bench.workload.prompts import WARMUP_SEED_STEP
from deploy.bench.workload.request import Workload

LADDERS = {
    "itl_target_ms": (10.0, 20.0, 40.0, 80.0, 160.0),
    "max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256),
}


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
    """A server whose knobs can be set. An async context manager: at its end nothing is left of it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def start_values(self) -> dict[str, KnobValue]:
        """The knobs that can be moved, with their values as things are."""

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """One trial. Raises what starting the server, or its first call, raises."""


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
            stack = await self._exit.enter_async_context(
                run_own_stack(_with_knobs(self._settings, setting.knobs), tenants_of(self._load.workload))
            )
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


def _knobs_of(settings: Settings) -> dict[str, KnobValue]:
    scheduler = settings.scheduler
    return {name: getattr(scheduler, name) for name in LADDERS}


def _with_knobs(settings: Settings, knobs: dict[str, KnobValue]) -> Settings:
    return msgspec.structs.replace(settings, scheduler=msgspec.structs.replace(settings.scheduler, **knobs))
