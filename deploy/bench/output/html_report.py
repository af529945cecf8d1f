"""One HTML file with figures and plots and nothing outside it: no script, no font, no image to load. Pure."""

import html
from collections.abc import Sequence

from deploy.bench.figures.comparison import Difference
from deploy.bench.figures.summary import RunSummary
from deploy.bench.output.difference_table import DIFFERENCE_HEADER, to_difference_row
from deploy.bench.output.forest import find_undrawn, render_forest
from deploy.bench.output.page import render_page
from deploy.bench.output.plots import Labelled, plot_all
from deploy.bench.output.result import RunResult
from deploy.bench.output.svg import render_chart
from deploy.bench.output.table import latency_rows, total_rows
from deploy.bench.output.timeline import render_timeline


def render_report(
    title: str,
    runs: Labelled,
    summaries: Sequence[RunSummary],
    *,
    question: str = "",
    differences: Sequence[tuple[str, Sequence[Difference]]] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The page. `summaries` belong to `runs`; `differences` are tables with their titles, drawn too."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if question:
        parts.append(f"<p>{html.escape(question)}</p>")
    parts += [f'<p class="warning">{html.escape(warning)}</p>' for warning in warnings]
    for heading, table in differences:
        parts += [
            f"<h2>{html.escape(heading)}</h2>",
            _table([to_difference_row(one) for one in table], DIFFERENCE_HEADER),
            *_draw_differences(heading, table),
        ]
    for (label, run), summary in zip(runs, summaries, strict=True):
        parts += _describe_run(label, run, summary)
    parts.append("<h2>Plots</h2>")
    parts.append(f'<div class="plots">{"".join(render_chart(chart) for chart in plot_all(runs))}</div>')
    parts.append(
        "<h2>Timeline</h2><p class='soft'>Orange: from the intended sending to the first token. Blue: tokens.</p>"
    )
    parts += [render_timeline(label, run) for label, run in runs]
    body = "\n".join(parts)
    return render_page(title, body)


def _draw_differences(heading: str, table: Sequence[Difference]) -> list[str]:
    undrawn = find_undrawn(table)
    note = f"Without an interval, or with nothing to be relative to: {', '.join(undrawn)}." if undrawn else ""
    return [render_forest(heading, table), f'<p class="soft">{html.escape(note)}</p>' if note else ""]


def _describe_run(label: str, run: RunResult, summary: RunSummary) -> list[str]:
    parts = [f"<h2>{html.escape(label)}</h2>", f'<p class="soft">{html.escape(describe_conditions(run))}</p>']
    parts += [f'<p class="warning">{html.escape(warning)}</p>' for warning in run.warnings]
    parts.append(_table(total_rows(run, summary)))
    header, rows = latency_rows(summary)
    return [*parts, _table(rows, header)]


def describe_conditions(run: RunResult) -> str:
    """How the run came about, in one line."""
    conditions = run.conditions
    load = "all at once"
    if conditions.request_rate is not None:
        load = f"{conditions.request_rate:g} requests/s, burstiness {conditions.burstiness:g}"
    elif conditions.max_concurrency is not None:
        load = f"concurrency {conditions.max_concurrency}"
    machine, model = conditions.machine, conditions.model
    details = ", ".join(f"{key} {value}" for key, value in conditions.workload_details.items())
    settings = ", ".join(f"{key}={value}" for key, value in conditions.settings.items())
    return "; ".join(
        part
        for part in (
            conditions.date,
            f"model {model.name} {model.dtype or ''} {model.fingerprint or ''}".strip(),
            f"workload {conditions.workload} ({details})",
            load,
            f"{machine.cpu}, {machine.num_cores} cores, {machine.system}",
            f"chairlift {conditions.software.chairlift} {conditions.software.commit}".strip(),
            settings,
        )
        if part
    )


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    head = f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in header)}</tr>" if header else ""
    lines = (f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}{''.join(lines)}</table>"
