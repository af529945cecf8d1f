"""A run as a document that can be committed: the table, what it means, and memory over time as plots beside it."""

from collections.abc import Callable
from pathlib import Path

from deploy.bench.chaos.report import ChaosReport, render_table
from deploy.bench.output.svg import Chart, Series, render_chart, thin_out

_STYLE = (
    "<style>svg{background:#fff;font:12px sans-serif}.title{font-weight:bold}.grid{stroke:#ddd;fill:none}"
    ".line,.key{fill:none;stroke-width:1.5}</style>"
)
_PLOTS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("gateways-schedulers", "Memory of gateways and schedulers", lambda name: not name.startswith("worker")),
    ("workers", "Memory of workers", lambda name: name.startswith("worker")),
)


def write_document(report: ChaosReport, file: Path, place: str) -> None:
    """Writes `file` (Markdown) and its plots (SVG) into the same folder. Raises OSError."""
    plots = []
    for suffix, title, belongs in _PLOTS:
        plot = file.with_name(f"{file.stem}-{suffix}.svg")
        plot.write_text(_standalone(render_chart(_memory_chart(report, title, belongs))))
        plots.append(f"![{title}]({plot.name})")
    text = (
        "# Chaos: what a loaded stack loses when its processes and links fail\n\n"
        f"`chairlift chaos --seconds {report.seconds:g} --seed {report.seed}`, {place}.\n"
        "Every accepted stream was compared with the undisturbed run: tokens, text, log-probabilities, ends.\n\n"
        f"```\n{render_table(report)}```\n\n"
        "*noticed*: from the fault until the first process said so; *recovered*: the longest time without\n"
        "anything new that a stream open at the fault saw before the next one.\n\n" + "\n\n".join(plots) + "\n"
    )
    file.write_text(text)


def _memory_chart(report: ChaosReport, title: str, belongs: Callable[[str], bool]) -> Chart:
    names = sorted({name for sample in report.memory for name in sample.bytes_by_name if belongs(name)})
    series = [
        Series(
            name,
            thin_out(
                [
                    (sample.at_s, sample.bytes_by_name[name] / (1 << 20))
                    for sample in report.memory
                    if name in sample.bytes_by_name
                ]
            ),
        )
        for name in names
    ]
    return Chart(title=title, x_label="s (a fall is a restart)", y_label="MiB", series=series)


def _standalone(svg: str) -> str:
    head, end, body = svg.partition(">")
    return f"{head}{end}{_STYLE}{body}\n"
