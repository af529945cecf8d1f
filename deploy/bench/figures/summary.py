"""The figures of one run, by the names that vLLM's benchmark gives them. Pure.

Latencies cover requests that came to their end in good order; every other outcome is counted beside them.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy

from deploy.bench.figures.slo import Objectives, is_good
from deploy.bench.figures.statistics import (
    NUM_RESAMPLES,
    QUANTILES,
    Clusters,
    Interval,
    bootstrap_mean,
    bootstrap_percentiles,
    group_observations,
    is_supported,
    percentile,
)
from deploy.bench.load.record import Outcome, RequestRecord

LATENCIES = ("ttft", "tpot", "itl", "icl", "e2el", "queue")
"""Time to first token, time per output token, inter-token, inter-chunk, end-to-end latency, and the server's queue."""


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of latency, in milliseconds."""

    count: int
    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: dict[float, float]
    mean_interval: Interval
    intervals: dict[float, Interval]
    """Of the percentiles, by the cluster bootstrap over requests."""
    unsupported: tuple[float, ...] = ()
    """Percentiles with too few observations beyond them."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Throughput counts from the first intended sending to the last end."""

    duration: float
    completed: int
    failed: int
    """Requests that did not come to their end in good order, clients that went away not counted."""
    outcomes: dict[str, int]
    reasons: dict[str, int]
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    error_rate: float
    timeout_rate: float
    preemptions: int
    cached_tokens: int
    latencies: dict[str, LatencySummary]
    tenants: dict[str, dict[str, LatencySummary]]
    """The same of each tenant's requests, where a workload has several."""
    send_lag_p99_ms: float
    """How late requests were sent against their schedule: the generator's own delay, and in a capped open loop the
    wait for a seat."""

    def to_fields(self) -> dict[str, object]:
        """Flat, with vLLM's names (``p99_ttft_ms``), intervals beside (``p99_ttft_ms_ci``)."""
        fields: dict[str, object] = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("latencies", "tenants")
        }
        fields |= _latency_fields(self.latencies)
        if self.tenants:
            fields["tenants"] = {tenant: _latency_fields(latencies) for tenant, latencies in self.tenants.items()}
        return fields


def _latency_fields(latencies: dict[str, LatencySummary]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, latency in latencies.items():
        fields[f"mean_{name}_ms"] = latency.mean
        fields[f"median_{name}_ms"] = latency.percentiles[50.0]
        fields[f"std_{name}_ms"] = latency.std
        fields[f"mean_{name}_ms_ci"] = latency.mean_interval
        for q, value in latency.percentiles.items():
            fields[f"p{q:g}_{name}_ms"] = value
            fields[f"p{q:g}_{name}_ms_ci"] = latency.intervals[q]
    return fields


def summarize_run(
    records: Sequence[RequestRecord], objectives: Objectives, num_resamples: int = NUM_RESAMPLES
) -> RunSummary:
    """All figures of `records`. Works with none of them measured; then there are no latencies.

    Fewer `num_resamples` are quicker and make the intervals rough; percentiles do not depend on them.
    """
    measured = [record for record in records if record.is_measured]
    duration = _duration_s(records)
    outcomes = Counter(record.outcome.value for record in records)
    num_abandoned = outcomes[Outcome.ABANDONED]
    judged = len(records) - num_abandoned
    output_tokens = sum(record.output_tokens for record in records)
    input_tokens = sum(record.prompt_tokens for record in records)
    lags = [(record.sent_ns - record.intended_ns) / 1e6 for record in records]
    return RunSummary(
        duration=duration,
        completed=len(measured),
        failed=judged - len(measured),
        outcomes=dict(outcomes),
        reasons=dict(Counter(record.reason for record in records if record.reason).most_common(20)),
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=_rate(len(measured), duration),
        request_goodput=(
            _rate(sum(is_good(record, objectives) for record in records), duration) if objectives.are_set else None
        ),
        output_throughput=_rate(output_tokens, duration),
        total_token_throughput=_rate(input_tokens + output_tokens, duration),
        max_output_tokens_per_s=_busiest_second(records),
        max_concurrent_requests=_most_at_once(records),
        error_rate=(judged - len(measured)) / judged if judged else 0.0,
        timeout_rate=outcomes[Outcome.TIMED_OUT] / judged if judged else 0.0,
        preemptions=sum(record.server.preemptions for record in records),
        cached_tokens=sum(record.server.cached_tokens for record in records),
        latencies=_summarize_latencies(measured, num_resamples),
        tenants={
            tenant: _summarize_latencies([one for one in measured if one.tenant == tenant], num_resamples)
            for tenant in sorted({record.tenant for record in records} - {""})
        },
        send_lag_p99_ms=float(numpy.percentile(lags, 99)) if lags else 0.0,
    )


def observe(records: Sequence[RequestRecord], latency: str) -> list[list[float]]:
    """The observations of one kind of latency, by request, in ms."""
    match latency:
        case "ttft":
            return [[record.ttft_ms] for record in records]
        case "tpot":
            return [[record.tpot_ms] for record in records if record.tpot_ms is not None]
        case "itl":
            return [record.inter_token_ms() for record in records]
        case "icl":
            return [record.inter_chunk_ms() for record in records]
        case "e2el":
            return [[record.e2el_ms] for record in records]
        case "queue":
            return [[record.server.queue_ms] for record in records if record.server.queue_ms is not None]
        case _:
            raise ValueError(f"no latency is called {latency}")


def summarize_latency(clusters: Clusters, num_resamples: int) -> LatencySummary:
    """Mean, spread and percentiles with intervals. Needs at least one value."""
    values = clusters.values
    return LatencySummary(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        minimum=float(values[0]),
        maximum=float(values[-1]),
        percentiles={q: percentile(values, q) for q in QUANTILES},
        mean_interval=bootstrap_mean(clusters, num_resamples),
        intervals=dict(zip(QUANTILES, bootstrap_percentiles(clusters, QUANTILES, num_resamples), strict=True)),
        unsupported=tuple(q for q in QUANTILES if not is_supported(len(values), q)),
    )


def _summarize_latencies(measured: Sequence[RequestRecord], num_resamples: int) -> dict[str, LatencySummary]:
    found: dict[str, LatencySummary] = {}
    for name in LATENCIES:
        clusters = group_observations(observe(measured, name))
        if len(clusters.values):
            found[name] = summarize_latency(clusters, num_resamples)
    return found


def _duration_s(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return (max(record.ended_ns for record in records) - min(record.intended_ns for record in records)) / 1e9


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _busiest_second(records: Sequence[RequestRecord]) -> float:
    start = min((record.intended_ns for record in records), default=0)
    seconds: Counter[int] = Counter()
    for record in records:
        for at_ns, num_tokens in zip(record.delta_ns, record.delta_tokens, strict=True):
            seconds[(at_ns - start) // 1_000_000_000] += num_tokens
    return float(max(seconds.values(), default=0))


def _most_at_once(records: Sequence[RequestRecord]) -> int:
    changes = sorted([(r.sent_ns, 1) for r in records] + [(r.ended_ns, -1) for r in records])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
