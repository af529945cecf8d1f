"""Tunes stacks of its own or the simulator, and reports what it chose and why."""

import argparse
import asyncio
import sys

import msgspec

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.commands.choices import read_ops_target, read_target
from deploy.bench.commands.files import read_cost, write_text
from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.load.client import TargetModel
from deploy.bench.observe.machine import describe_machine
from deploy.bench.output.difference_table import format_differences
from deploy.bench.tune.journal import Journal, JournalHead
from deploy.bench.tune.knobs import LADDERS
from deploy.bench.tune.live_plant import LivePlant
from deploy.bench.tune.plant import OwnStackPlant, Plant, PlantFacts, SimulatedPlant, TrialLoad, make_ladders
from deploy.bench.tune.search import Bounds, Phase
from deploy.bench.tune.trial import Trial, TuneObjectives
from deploy.bench.tune.tuned_file import format_trial, render_tuned_file
from deploy.bench.tune.tuner import Tuned, tune
from deploy.bench.workload.catalogue import WorkloadOptions


def run(arguments: argparse.Namespace) -> int:
    """Exit code: failed where nothing is within the objectives. Raises BenchError and what the launcher raises."""
    objectives = TuneObjectives(ttft_p99_ms=arguments.slo_ttft_p99_ms, itl_p99_ms=arguments.slo_itl_p99_ms)
    load = _read_load(arguments)
    load.draw(TargetModel(name=""), 0)
    try:
        tuned, journal = asyncio.run(_tune(arguments, objectives, load))
    except asyncio.CancelledError:
        told = f"; {arguments.journal} holds the trials that were done" if arguments.journal is not None else ""
        raise BenchError(f"ended by a signal{told}") from None
    _report(arguments, tuned, journal, objectives)
    return ExitCode.OK if tuned.outcome.best is not None else ExitCode.FAILED


async def _tune(arguments: argparse.Namespace, objectives: TuneObjectives, load: TrialLoad) -> tuple[Tuned, Journal]:
    bounds = Bounds(max_concurrency=arguments.max_concurrency, max_trials=arguments.max_trials)
    spans = _read_bounds(arguments.bound)
    async with _open_plant(arguments, load, objectives) as plant:
        facts = await plant.describe()
        journal = Journal(arguments.journal, _make_head(arguments, objectives, load, facts))
        ladders = make_ladders(facts, spans)
        tuned = await tune(plant, ladders, bounds, objectives, journal, arguments.repetitions, _tell)
        if arguments.keep and isinstance(plant, LivePlant) and tuned.outcome.best is not None:
            plant.keep(tuned.outcome.best.setting.knobs)
        return tuned, journal


def _make_head(
    arguments: argparse.Namespace, objectives: TuneObjectives, load: TrialLoad, facts: PlantFacts
) -> JournalHead:
    workload = load.draw(TargetModel(name=""), 0)
    return JournalHead(
        objectives=objectives,
        workload=workload.name,
        workload_details=workload.describe() | {"num_requests": load.num_requests, "num_warmups": load.num_warmups},
        plant="simulator" if arguments.simulate else arguments.target or "own stacks",
        fingerprint=facts.fingerprint,
        knobs=facts.knobs,
        settings=facts.settings,
        device_cost=facts.device_cost,
        machine=None if arguments.simulate else describe_machine(),
    )


def _open_plant(arguments: argparse.Namespace, load: TrialLoad, objectives: TuneObjectives) -> Plant:
    if arguments.target is not None:
        return _open_live_plant(arguments, load, objectives)
    if arguments.keep:
        raise BenchUsageError("--keep needs a running server: --target")
    settings = load_settings(arguments.config, arguments.overrides)
    if arguments.simulate:
        return SimulatedPlant(settings, load, read_cost(arguments.device_cost))
    return OwnStackPlant(settings, load)


def _open_live_plant(arguments: argparse.Namespace, load: TrialLoad, objectives: TuneObjectives) -> Plant:
    if arguments.simulate or arguments.config is not None or arguments.overrides:
        raise BenchUsageError("--target tunes a server that runs already: it takes no --simulate, --config or --set")
    ops = read_ops_target(arguments)
    if ops is None:
        raise BenchUsageError("--target: name the operator's address too: --ops ADDR")
    return LivePlant(read_target(arguments), ops, load, objectives)


def _read_load(arguments: argparse.Namespace) -> TrialLoad:
    options = WorkloadOptions(
        seed=arguments.seed,
        prompt=arguments.prompt_tokens,
        output=arguments.output_tokens,
        abandon_share=arguments.abandon_share,
        length_scale=arguments.length_scale,
    )
    return TrialLoad(
        workload=arguments.workload,
        options=options,
        num_requests=arguments.num_requests,
        num_warmups=arguments.warmup,
        timeout_s=arguments.timeout,
    )


def _read_bounds(pairs: list[str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for pair in pairs:
        name, _, span = pair.partition("=")
        low, _, high = span.partition(":")
        try:
            found[name] = least, most = float(low), float(high)
        except ValueError:
            raise BenchUsageError(f"--bound {pair}: expected KNOB=LOW:HIGH") from None
        if not 0 < least <= most:
            raise BenchUsageError(f"--bound {pair}: expected 0 < LOW <= HIGH")
        if name not in LADDERS:
            raise BenchUsageError(f"--bound {pair}: the knobs are {', '.join(LADDERS)}")
    return found


def _tell(trial: Trial, phase: Phase) -> None:
    print(f"{phase}: {format_trial(trial)}", file=sys.stderr)


def _report(arguments: argparse.Namespace, tuned: Tuned, journal: Journal, objectives: TuneObjectives) -> None:
    trials = list(journal.trials.values())
    if tuned.outcome.best is None:
        text = f"nothing is within the objectives: {tuned.outcome.reason}\n"
    else:
        text = render_tuned_file(tuned.outcome, tuned.confirmation, trials, objectives, tuned.conditions)
        if arguments.output is not None:
            write_text(arguments.output, text)
    if arguments.json:
        print(msgspec.json.encode({**msgspec.structs.asdict(tuned), "trials": trials}).decode())
        return
    print(text, end="")
    if tuned.confirmation is not None:
        print("\n# The chosen knobs (theirs) against those of the start (ours), the same load, alternating:")
        print(format_differences(tuned.confirmation.differences))
