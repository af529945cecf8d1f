"""Differences between two sides of one or more runs each, with intervals and a verdict. Pure.

Runs are what repeats, so with several runs a side the interval is over runs: of paired differences where the runs
belong together in pairs (Student), else Welch's. With one run a side it covers chance within the runs only, by the
bootstrap over requests, and says so.
"""

import enum
import math
import statistics
from collections.abc import Sequence

import msgspec

from deploy.bench.figures.statistics import (
    NUM_RESAMPLES,
    Interval,
    group_observations,
    mean_interval,
    middle,
    resample_percentiles,
    welch_interval,
)
from deploy.bench.figures.summary import RunSummary, observe
from deploy.bench.load.record import RequestRecord


class Better(enum.StrEnum):
    """Which way a metric is good."""

    HIGHER = "higher"
    LOWER = "lower"


class Verdict(enum.StrEnum):
    """What can be said of a difference."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "not distinguishable from noise"
    UNKNOWN = "too few runs to tell"


class Metric(msgspec.Struct, frozen=True):
    """A figure that runs are compared by, named as in results."""

    name: str
    better: Better
    latency: str | None = None
    quantile: float | None = None
    """Of `latency`; None with a latency: its mean."""
    tenant: str | None = None
    """Of this tenant's requests alone; None: of all."""


METRICS = (
    Metric("output_throughput", Better.HIGHER),
    Metric("request_throughput", Better.HIGHER),
    Metric("request_goodput", Better.HIGHER),
    *(
        Metric(f"{'median' if quantile == 50.0 else f'p{quantile:g}'}_{latency}_ms", Better.LOWER, latency, quantile)
        for latency in ("ttft", "itl", "tpot", "e2el", "queue")
        for quantile in (50.0, 90.0, 99.0)
    ),
    Metric("mean_ttft_ms", Better.LOWER, "ttft"),
    Metric("error_rate", Better.LOWER),
    Metric("preemptions", Better.LOWER),
)
_TENANT_METRICS = ("median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "median_e2el_ms", "p99_e2el_ms")


def metric_called(name: str) -> Metric | None:
    """The metric with a name of `METRICS`, or one of a tenant's as ``quiet.p99_ttft_ms``; None: there is none."""
    tenant, _, own_name = name.rpartition(".")
    found = next((metric for metric in METRICS if metric.name == own_name), None)
    if found is None or not tenant:
        return found
    return None if own_name not in _TENANT_METRICS else msgspec.structs.replace(found, name=name, tenant=tenant)


def metrics_of(summaries: Sequence[RunSummary]) -> list[Metric]:
    """`METRICS`, and median and p99 of the first token and of the whole for each tenant."""
    tenants = sorted({tenant for summary in summaries for tenant in summary.tenants})
    names = [f"{tenant}.{one}" for tenant in tenants for one in _TENANT_METRICS]
    return [*METRICS, *(metric for name in names if (metric := metric_called(name)) is not None)]


class Run(msgspec.Struct, frozen=True):
    """One run as it is compared."""

    summary: RunSummary
    records: Sequence[RequestRecord]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two sides: theirs less ours."""

    metric: str
    better: Better
    ours: float
    theirs: float
    difference: float
    relative: float | None
    """Of ours; None where ours is 0."""
    interval: Interval | None
    is_within_run: bool
    """Whether the interval covers chance within one run only."""
    verdict: Verdict


def compare_runs(ours: Sequence[Run], theirs: Sequence[Run], *, are_paired: bool) -> list[Difference]:
    """Every metric that all runs have. With `are_paired`, run i of one side belongs to run i of the other."""
    metrics = metrics_of([run.summary for run in (*ours, *theirs)])
    found = [_compare(metric, ours, theirs, are_paired=are_paired) for metric in metrics]
    return [difference for difference in found if difference is not None]


def read_metric(summary: RunSummary, metric: Metric) -> float | None:
    """Its value in one run; None where the run does not have it."""
    if metric.latency is None:
        value = getattr(summary, metric.name)
        return None if value is None else float(value)
    latencies = summary.latencies if metric.tenant is None else summary.tenants.get(metric.tenant, {})
    latency = latencies.get(metric.latency)
    if latency is None:
        return None
    return latency.mean if metric.quantile is None else latency.percentiles[metric.quantile]


def _compare(metric: Metric, ours: Sequence[Run], theirs: Sequence[Run], *, are_paired: bool) -> Difference | None:
    our_values = [read_metric(run.summary, metric) for run in ours]
    their_values = [read_metric(run.summary, metric) for run in theirs]
    our_known = [value for value in our_values if value is not None]
    their_known = [value for value in their_values if value is not None]
    if len(our_known) < len(ours) or len(their_known) < len(theirs) or not our_known or not their_known:
        return None
    is_within_run = len(ours) == len(theirs) == 1
    if is_within_run:
        interval = _bootstrap_difference(metric, ours[0], theirs[0])
    elif are_paired:
        interval = mean_interval([after - before for before, after in zip(our_known, their_known, strict=True)])
    else:
        interval = welch_interval(our_known, their_known)
    before, after = statistics.fmean(our_known), statistics.fmean(their_known)
    return Difference(
        metric=metric.name,
        better=metric.better,
        ours=before,
        theirs=after,
        difference=after - before,
        relative=(after - before) / before if before else None,
        interval=interval,
        is_within_run=is_within_run,
        verdict=_judge(metric, after - before, interval),
    )


def _bootstrap_difference(metric: Metric, ours: Run, theirs: Run) -> Interval | None:
    if metric.latency is None or metric.quantile is None:
        return None
    sides = []
    for seed, run in enumerate((ours, theirs)):
        measured = [record for record in run.records if record.is_measured and metric.tenant in (None, record.tenant)]
        clusters = group_observations(observe(measured, metric.latency))
        sides.append(resample_percentiles(clusters, (metric.quantile,), NUM_RESAMPLES, seed)[:, 0])
    return middle(sides[1] - sides[0])


def _judge(metric: Metric, difference: float, interval: Interval | None) -> Verdict:
    if interval is None or math.isnan(interval.low):
        return Verdict.UNKNOWN
    if not interval.excludes_zero:
        return Verdict.NOISE
    return Verdict.BETTER if (difference > 0) is (metric.better is Better.HIGHER) else Verdict.WORSE
