"""Where a variant runs: an interface, stacks of one's own, and the simulator."""

import asyncio
from pathlib import Path
from typing import Protocol

import msgspec

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.experiment.definition import Experiment, Variant
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import TargetModel
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.result import RunResult
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.replica import simulate
from deploy.bench.stack import describe_settings, run_own_stack
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.lengths import parse_length_range
from deploy.bench.workload.names import tenants_of
from deploy.bench.workload.prompts import WARMUP_SEED_STEP
from deploy.bench.workload.request import Workload


class Laboratory(Protocol):
    """Runs one repetition of one variant."""

    def check(self, variant: Variant) -> None:
        """Refuses what cannot run here, before anything runs. Raises SettingsError, WorkloadError."""

    async def run(self, experiment: Experiment, variant: Variant, repetition: int) -> RunResult:
        """One run, records with token digests. Raises TargetError, and what the launcher raises."""


class OwnStackLaboratory:
    """A fresh stack for each run, so that none inherits caches, memory or wear from the one before."""

    def __init__(self, config: Path | None, overrides: tuple[str, ...]) -> None:
        """`config` and `overrides` (``section.key=value``) are the user's; an experiment's own values go over them."""
        self._config = config
        self._overrides = overrides

    def check(self, variant: Variant) -> None:
        """See `Laboratory`."""
        read_settings(variant, self._config, self._overrides)
        draw_workload(variant, TargetModel(name=""), 0)

    async def run(self, experiment: Experiment, variant: Variant, repetition: int) -> RunResult:
        """See `Laboratory`."""
        clock = MonotonicClock()
        settings = read_settings(variant, self._config, self._overrides)
        async with run_own_stack(settings, tenants_of(variant.workload.name)) as stack:
            client = GrpcClient(stack.target, clock)
            try:
                wanted = plan_run(experiment, variant, repetition, await client.describe())
                return await measure(
                    client,
                    msgspec.structs.replace(wanted, ops=stack.ops, settings=stack.settings, is_own_stack=True),
                    clock,
                )
            finally:
                await client.close()


class SimulatedLaboratory:
    """A fresh simulated replica for each run, in virtual time."""

    def __init__(self, config: Path | None, overrides: tuple[str, ...], cost: DeviceCost) -> None:
        """See `OwnStackLaboratory`; settings of gateway and worker, but for the KV cache's size, mean nothing here."""
        self._config = config
        self._overrides = overrides
        self._cost = cost

    def check(self, variant: Variant) -> None:
        """See `Laboratory`."""
        read_settings(variant, self._config, self._overrides)
        draw_workload(variant, TargetModel(name=""), 0)

    async def run(self, experiment: Experiment, variant: Variant, repetition: int) -> RunResult:
        """See `Laboratory`. Computes in a thread: the simulator has an event loop of its own."""
        settings = read_settings(variant, self._config, self._overrides)

        def prepare(model: TargetModel) -> Measurement:
            wanted = plan_run(experiment, variant, repetition, model)
            return msgspec.structs.replace(wanted, backend="simulator", settings=describe_settings(settings))

        return await asyncio.to_thread(simulate, settings, self._cost, prepare)


def read_settings(variant: Variant, config: Path | None, overrides: tuple[str, ...]) -> Settings:
    """The user's settings with the variant's over them. Raises SettingsError."""
    own = [f"{path}={_render(value)}" for path, value in variant.settings.items()]
    return load_settings(config, [*overrides, *own])


def plan_run(experiment: Experiment, variant: Variant, repetition: int, model: TargetModel) -> Measurement:
    """One repetition of a variant on a server of `model`. Raises WorkloadError."""
    return Measurement(
        backend="chairlift",
        model=model,
        workload=draw_workload(variant, model, repetition),
        plan=plan_load(variant, repetition),
        warmup=draw_workload(variant, model, repetition + WARMUP_SEED_STEP),
        num_warmups=experiment.warmup,
        objectives=experiment.objectives,
        label=variant.name,
    )


def draw_workload(variant: Variant, model: TargetModel, repetition: int) -> Workload:
    """The variant's workload; each repetition has another draw, the same for every variant. Raises WorkloadError."""
    choice = variant.workload
    options = WorkloadOptions(
        seed=choice.seed + repetition,
        vocab_size=model.vocab_size,
        prompt=None if choice.prompt_tokens is None else parse_length_range(choice.prompt_tokens),
        output=None if choice.output_tokens is None else parse_length_range(choice.output_tokens),
        length_scale=choice.length_scale,
        max_model_len=model.max_model_len,
    )
    return find_workload(choice.name, options)


def plan_load(variant: Variant, repetition: int) -> LoadPlan:
    """The variant's load, with token digests."""
    load = variant.load
    arrivals = None
    if load.rate is not None:
        arrivals = Arrivals(rate=load.rate, burstiness=load.burstiness, seed=variant.workload.seed + repetition)
    return LoadPlan(
        arrivals=arrivals,
        concurrency=load.concurrency,
        num_sessions=variant.workload.num_requests,
        timeout_s=load.timeout_s,
        wants_ids=True,
    )


def _render(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
