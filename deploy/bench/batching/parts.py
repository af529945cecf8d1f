"""The parts of the report on batching: experiments in every shape of workload, and a sweep of concurrency."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from deploy.bench.experiment.conduct import conduct
from deploy.bench.experiment.definition import Experiment, LoadChoice, WorkloadChoice, load_experiment
from deploy.bench.experiment.laboratory import Laboratory
from deploy.bench.experiment.verdict import ExperimentReport, judge
from deploy.bench.output.plots import plot_cdf
from deploy.bench.output.result import RunConditions
from deploy.bench.output.svg import Chart

STATIC_OR_CONTINUOUS, CHUNKED, SWEEP = "static-vs-continuous", "chunked-prefill", "max-users"
MIN_KNEE_GAIN = 0.10
"""Twice the users for less than this much more throughput: beyond the knee."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of workload in which static and continuous batching are compared."""

    name: str
    workload: WorkloadChoice
    load: LoadChoice


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment of the report, done."""

    name: str
    report: ExperimentReport
    conditions: RunConditions
    charts: list[Chart]
    experiment: Experiment | None = None
    """What was done; None in files from before it was kept."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """So many users at once, and what they got."""

    users: int
    output_throughput: float
    median_ttft_ms: float
    p99_ttft_ms: float
    median_itl_ms: float
    p99_itl_ms: float
    kv_used_share_max: float | None
    preemptions: int


class SweepRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep is to do."""

    workload: str
    users: tuple[int, ...]
    """At once, ascending."""
    requests_a_user: int
    settings: tuple[str, ...]
    """Of the stack, ``section.key=value`` each."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep of concurrency, done."""

    points: list[SweepPoint]
    conditions: RunConditions
    recipe: SweepRecipe | None = None
    """What was done; None in files from before it was kept."""


def _shape(name: str, workload: str, num_requests: int, **load: float) -> Shape:
    choice = WorkloadChoice(name=workload, num_requests=num_requests)
    return Shape(name=name, workload=choice, load=msgspec.convert(load, LoadChoice))


SHAPES = (
    _shape("short prompts, short outputs", "short-short", 48, concurrency=8),
    _shape("short prompts, long outputs", "short-long", 20, concurrency=8),
    _shape("long prompts, short outputs", "long-short", 20, concurrency=8),
    _shape("long prompts, long outputs", "long-long", 20, concurrency=8),
    _shape("mixed, low concurrency", "mixed", 20, concurrency=2),
    _shape("mixed, high concurrency", "mixed", 48, concurrency=32),
    _shape("mixed, at a rate", "mixed", 32, rate=1.0),
    _shape("sparse", "sparse", 20, rate=0.4),
)


def experiment_of(shape: Shape, repetitions: int) -> Experiment:
    """The ready-made comparison of static and continuous batching, under another load."""
    base = load_experiment(STATIC_OR_CONTINUOUS)
    replace = msgspec.structs.replace
    variants = tuple(replace(variant, workload=shape.workload, load=shape.load) for variant in base.variants)
    return replace(base, name=shape.name, variants=variants, repetitions=repetitions)


async def run_part(experiment: Experiment, laboratory: Laboratory, latency: str, *, is_simulated: bool) -> Part:
    """Conducts one experiment. Raises what it raises."""
    conducted = await conduct(experiment, laboratory)
    runs = [(side.variant.name, side.runs[0]) for side in conducted.variants]
    return Part(
        name=experiment.name,
        report=judge(conducted, is_simulated=is_simulated),
        conditions=runs[0][1].conditions,
        charts=[plot_cdf(runs, latency, f"{experiment.name}: {latency}")],
        experiment=experiment,
    )


def find_knee(points: Sequence[SweepPoint]) -> int | None:
    """Users at the knee: beyond it, twice as many give less than `MIN_KNEE_GAIN` more. None: all gained."""
    for before, after in pairwise(points):
        if after.output_throughput < before.output_throughput * (1 + MIN_KNEE_GAIN):
            return before.users
    return None
