"""A study for people: tables, charts, one page. Pure: returns text."""

import html
from collections.abc import Sequence

from deploy.bench.output.page import render_page
from deploy.bench.output.svg import Chart, Point, Series, render_chart
from deploy.bench.output.table import format_table
from deploy.bench.study.run import StudyResult
from scheduler_svc.sim.outcome import Report

Labelled = Sequence[tuple[str, StudyResult]]

_MAX_TENANTS = 12
_SPREADS = (
    ("Time to first token", "ttft_ms"),
    ("Inter-token latency", "itl_ms"),
    ("Queueing", "queue_ms"),
    ("End to end", "e2e_ms"),
)


def total_rows(report: Report) -> list[tuple[str, str]]:
    """Counts and shares: name and value."""
    return [
        ("Requests completed", f"{report.requests}"),
        ("Requests refused", f"{report.refused}"),
        ("Duration, virtual (s)", f"{report.duration_s:.1f}"),
        ("Requests/s", f"{report.requests_per_s:.2f}"),
        ("Output tokens/s", f"{report.output_tokens_per_s:.0f}"),
        ("Goodput (requests/s)", f"{report.goodput_per_s:.2f}"),
        ("Goodput (share)", f"{report.goodput_share:.1%}"),
        ("Steps", f"{report.steps}"),
        ("Decode rows a step, mean", f"{report.mean_batch:.1f}"),
        ("Preemptions", f"{report.preemptions}"),
        ("Blocks swapped", f"{report.swapped_blocks}"),
        ("Prompt tokens cached", f"{report.cached_share:.1%}"),
        ("KV use, mean / peak", f"{report.kv_mean:.1%} / {report.kv_peak:.1%}"),
        ("Fairness between tenants (Jain)", f"{report.fairness:.3f}"),
        ("Error of predicted TTFT", f"{report.prediction_error:.1%}"),
    ]


def spread_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """A header, and a row a latency."""
    rows = []
    for title, field in _SPREADS:
        spread = getattr(report, field)
        rows.append(
            [title, *(f"{value:.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max))]
        )
    return ["ms", "mean", "p50", "p90", "p99", "max"], rows


def tenant_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """A header, and a row a tenant, the largest first; no row where there is one tenant."""
    tenants = sorted(report.tenants.items(), key=lambda pair: -pair[1].tokens) if len(report.tenants) > 1 else []
    rows = [
        [name, f"{one.requests}", f"{one.tokens}", f"{one.mean_ttft_ms:.1f}", f"{one.p99_ttft_ms:.1f}"]
        for name, one in tenants[:_MAX_TENANTS]
    ]
    return ["tenant", "requests", "tokens", "TTFT mean (ms)", "p99"], rows


def format_study(report: Report) -> str:
    """What the terminal shows."""
    parts = [format_table(total_rows(report)), ""]
    for header, rows in (spread_rows(report), tenant_rows(report)):
        if rows:
            parts += [format_table(rows, header), ""]
    return "\n".join(parts).rstrip()


def format_comparison(named: Sequence[tuple[str, Report]]) -> str:
    """Two or more side by side."""
    lines = []
    for at, (title, _) in enumerate(total_rows(named[0][1])):
        lines.append([title, *(total_rows(report)[at][1] for _, report in named)])
    for title, field in _SPREADS:
        for part in ("p50", "p99"):
            values = (getattr(getattr(report, field), part) for _, report in named)
            lines.append([f"{title}, {part} (ms)", *(f"{value:.1f}" for value in values)])
    for name in list(named[0][1].tenants)[:_MAX_TENANTS] if len(named[0][1].tenants) > 1 else ():
        values = (report.tenants[name].p99_ttft_ms if name in report.tenants else 0.0 for _, report in named)
        lines.append([f"TTFT of {name}, p99 (ms)", *(f"{value:.1f}" for value in values)])
    return format_table(lines, ["", *(name for name, _ in named)])


def charts(named: Labelled) -> dict[str, Chart]:
    """Charts by the name of their file."""

    def over_time(title: str, y_label: str, value: str, factor: float = 1.0, y_max: float | None = None) -> Chart:
        series = []
        for label, study in named:
            points: list[Point] = [(one.at_s, factor * getattr(one, value)) for one in study.samples]
            series.append(Series(label, points, is_stepped=True))
        return Chart(title=title, x_label="s", y_label=y_label, series=series, y_max=y_max)

    def distribution(title: str, field: str) -> Chart:
        series = [Series(label, getattr(study, field)) for label, study in named]
        return Chart(title=title, x_label="ms", y_label="% below", series=series, is_log_x=True, y_max=100.0)

    return {
        "ttft": distribution("Time to first token", "ttft_ms"),
        "itl": distribution("Inter-token latency", "itl_ms"),
        "running": over_time("Sequences in the batch", "sequences", "running"),
        "waiting": over_time("Sequences that wait", "sequences", "waiting"),
        "kv": over_time("KV cache in use", "% of blocks", "kv_used", 100.0, 100.0),
    }


def render_study(title: str, conditions: str, named: Labelled) -> str:
    """The page."""
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="soft">{html.escape(conditions)}</p>']
    for label, study in named:
        parts.append(f"<h2>{html.escape(label)}</h2>")
        parts.append(f"<pre>{html.escape(format_study(study.report))}</pre>")
    drawn = "".join(render_chart(chart) for chart in charts(named).values())
    parts.append(f'<h2>Plots</h2><div class="plots">{drawn}</div>')
    return render_page(title, "\n".join(parts))
