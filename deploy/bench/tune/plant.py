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
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.replica import make_geometry, simulate
from deploy.bench.stack import OwnStack, describe_settings, run_own_stack
from deploy.bench.tune.knobs import LADDERS, NO_ITL_TARGET, KnobClient
from deploy.bench.tune.search import Ladder
from deploy.bench.tune.trial import KnobValue, Setting, SettingRefusedError, TrialRun
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.names import tenants_of
from deploy.bench.workload.prompts import WARMUP_SEED_STEP
from deploy.bench.workload.request import Workload
from deploy.launcher.supervisor import StackError


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


class PlantFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is tuned, before anything is moved."""

    knobs: dict[str, KnobValue]
    """Those that can be moved, with their values as things are."""
    defaults: dict[str, KnobValue]
    """What a knob that is left to the server comes to, where that is known."""
    fingerprint: str = ""
    """Of the model."""
    settings: dict[str, str] = {}
    """What it is started with, where they differ from the defaults."""
    device_cost: DeviceCost | None = None
    """Of a simulated device."""


class Plant(Protocol):
    """A server whose knobs can be set. An async context manager: at its end nothing is left of it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def describe(self) -> PlantFacts:
        """What it is as things are. Raises what starting the server, or its first call, raises."""

    async def run(self, setting: Setting, repetition: int) -> TrialRun:
        """One trial. Raises SettingRefusedError, and TargetError where the server cannot be measured."""


def make_ladders(facts: PlantFacts, bounds: dict[str, tuple[float, float]]) -> list[Ladder]:
    """A ladder for each knob that has one, cut to the user's bounds by name."""
    found = []
    for name, values in LADDERS.items():
        if name in facts.knobs:
            low, high = bounds.get(name, (0.0, float("inf")))
            rungs = tuple(value for value in values if low <= value <= high)
            default = facts.defaults.get(name)
            found.append(Ladder(name=name, values=rungs, start=facts.knobs[name], default=default))
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

    async def describe(self) -> PlantFacts:
        """See `Plant`. Starts the stack as the settings have it: only it knows what it makes of its defaults."""
        stack, client = await self._run_with(_knobs_of(self._settings))
        model = await client.describe()
        async with KnobClient(stack.ops) as knobs:
            in_force = (await knobs.read())[0].knobs
        return PlantFacts(
            knobs=_knobs_of(self._settings),
            defaults={**in_force, "itl_target_ms": NO_ITL_TARGET},
            fingerprint=model.fingerprint or "",
            settings=stack.settings,
        )

    async def run(self, setting: Setting, repetition: int) -> TrialRun:
        """See `Plant`. A setting that the stack does not start with, or dies of, is refused."""
        try:
            stack, client = await self._run_with(setting.knobs)
            wanted = plan_trial(self._load, setting, repetition, await client.describe())
            wanted = msgspec.structs.replace(wanted, ops=stack.ops, settings=stack.settings, is_own_stack=True)
            return TrialRun(await measure(client, wanted, MonotonicClock()))
        except asyncio.CancelledError as error:
            # A stack that dies cancels who uses it, and says so when it is left.
            await self._stop(error)
            raise
        except StackError as error:
            raise SettingRefusedError(f"the stack does not start: {error}") from error

    async def _run_with(self, knobs: dict[str, KnobValue]) -> tuple[OwnStack, GrpcClient]:
        if self._running is None or self._running[0] != knobs:
            await self._exit.aclose()
            self._running = None
            settings = _with_knobs(self._settings, knobs)
            stack = await self._exit.enter_async_context(run_own_stack(settings, tenants_of(self._load.workload)))
            client = GrpcClient(stack.target, MonotonicClock())
            self._exit.push_async_callback(client.close)
            self._running = (knobs, stack, client)
        return self._running[1:]

    async def _stop(self, error: BaseException) -> None:
        """Raises SettingRefusedError where it had died, which is why `error` came."""
        self._running = None
        try:
            await self._exit.__aexit__(type(error), error, error.__traceback__)
        except StackError as death:
            raise SettingRefusedError(f"the stack died: {death}") from death


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

    async def describe(self) -> PlantFacts:
        """See `Plant`."""
        geometry = make_geometry(self._settings)
        return PlantFacts(
            knobs=_knobs_of(self._settings),
            defaults={
                "max_num_seqs": geometry.max_num_seqs,
                "max_num_batched_tokens": geometry.max_num_batched_tokens,
                "itl_target_ms": NO_ITL_TARGET,
            },
            fingerprint=geometry.fingerprint,
            settings=describe_settings(self._settings),
            device_cost=self._cost,
        )

    async def run(self, setting: Setting, repetition: int) -> TrialRun:
        """See `Plant`. Computes in a thread: the simulator has an event loop of its own."""
        settings = _with_knobs(self._settings, setting.knobs)

        def prepare(model: TargetModel) -> Measurement:
            wanted = plan_trial(self._load, setting, repetition, model)
            return msgspec.structs.replace(wanted, backend="simulator", settings=describe_settings(settings))

        return TrialRun(await asyncio.to_thread(simulate, settings, self._cost, prepare))


def _knobs_of(settings: Settings) -> dict[str, KnobValue]:
    scheduler = settings.scheduler
    return {name: getattr(scheduler, name) for name in LADDERS}


def _with_knobs(settings: Settings, knobs: dict[str, KnobValue]) -> Settings:
    return msgspec.structs.replace(settings, scheduler=msgspec.structs.replace(settings.scheduler, **knobs))
