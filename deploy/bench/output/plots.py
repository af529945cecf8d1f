"""The plots of a report, from one or more runs laid over another. Pure: returns charts."""

from collections import defaultdict
from collections.abc import Sequence

import numpy

from deploy.bench.figures.summary import observe
from deploy.bench.load.record import RequestRecord
from deploy.bench.output.result import RunResult
from deploy.bench.output.svg import Chart, Point, Series, thin_out

BIN_S = 1.0

Labelled = Sequence[tuple[str, RunResult]]


def plot_all(runs: Labelled) -> list[Chart]:
    """Every plot that the runs have data for."""
    charts = [
        plot_cdf(runs, "ttft", "Time to first token"),
        plot_cdf(runs, "itl", "Inter-token latency"),
        plot_cdf(runs, "e2el", "End-to-end latency"),
        plot_itl_over_time(runs),
        plot_throughput(runs),
    ]
    if any(run.samples for _, run in runs):
        charts += [plot_batch(runs), plot_kv(runs)]
    if any(run.iterations for _, run in runs):
        charts.append(plot_iterations(runs))
    return charts


def plot_cdf(runs: Labelled, latency: str, title: str) -> Chart:
    """Share of observations below a latency."""
    series = []
    for label, run in runs:
        values = sorted(value for one in observe(_measured(run), latency) for value in one)
        points = [(value, 100 * (at + 1) / len(values)) for at, value in enumerate(values)]
        series.append(Series(label, thin_out(points), is_stepped=len(values) < 500))
    return Chart(title=title, x_label="ms", y_label="% of observations", series=series, is_log_x=True, y_max=100.0)


def plot_itl_over_time(runs: Labelled) -> Chart:
    """Median and 99th percentile of the gaps that ended in each second."""
    series = []
    for label, run in runs:
        bins: dict[int, list[float]] = defaultdict(list)
        for record in _measured(run):
            for at_ns, gap in zip(record.delta_ns[1:], record.inter_chunk_ms(), strict=True):
                bins[int(at_ns / 1e9 / BIN_S)].append(gap)
        for q in (50, 99):
            points = [(at * BIN_S, float(numpy.percentile(gaps, q))) for at, gaps in sorted(bins.items())]
            series.append(Series(f"{label} p{q}", points))
    return Chart(title="Inter-token latency over time", x_label="s", y_label="ms", series=series)


def plot_throughput(runs: Labelled) -> Chart:
    """Output tokens in each second."""
    series = []
    for label, run in runs:
        bins: dict[int, int] = defaultdict(int)
        for record in run.records:
            for at_ns, num_tokens in zip(record.delta_ns, record.delta_tokens, strict=True):
                bins[int(at_ns / 1e9 / BIN_S)] += num_tokens
        last = max(bins, default=-1)
        series.append(Series(label, [(at * BIN_S, bins[at] / BIN_S) for at in range(last + 1)]))
    return Chart(title="Output tokens a second", x_label="s", y_label="tokens/s", series=series)


def plot_batch(runs: Labelled) -> Chart:
    """Sequences in the batch and waiting, by the server's account."""
    series = []
    for label, run in runs:
        series.append(Series(f"{label} running", [(s.at_ns / 1e9, s.running) for s in run.samples], is_stepped=True))
        series.append(Series(f"{label} waiting", [(s.at_ns / 1e9, s.waiting) for s in run.samples], is_stepped=True))
    return Chart(title="Batch size and queue", x_label="s", y_label="sequences", series=series)


def plot_kv(runs: Labelled) -> Chart:
    """Share of KV blocks in use, by the server's account."""
    series = []
    for label, run in runs:
        points: list[Point] = [
            (sample.at_ns / 1e9, 100 * sample.blocks_used / sample.blocks_total)
            for sample in run.samples
            if sample.blocks_total
        ]
        series.append(Series(label, points, is_stepped=True))
    return Chart(title="KV cache in use", x_label="s", y_label="% of blocks", series=series)


def plot_iterations(runs: Labelled) -> Chart:
    """Sequences in each iteration."""
    series = [
        Series(label, [(one.at_ns / 1e9, one.num_seqs) for one in run.iterations], is_stepped=True)
        for label, run in runs
    ]
    return Chart(title="Sequences in each iteration", x_label="s", y_label="sequences", series=series)


def _measured(run: RunResult) -> list[RequestRecord]:
    return [record for record in run.records if record.is_measured]
