"""The report as Markdown, and its charts. Pure: returns text."""

from collections.abc import Sequence

from deploy.bench.batching.parts import Part, Sweep, find_knee
from deploy.bench.experiment.verdict import VariantDifference
from deploy.bench.figures.comparison import Difference, Verdict
from deploy.bench.output.machine_line import describe_place
from deploy.bench.output.svg import Chart, Series
from deploy.bench.workload.names import SPARSE_RATE

_HEAD = """# What batching gives

Made by `python -m deploy.bench.batching_report FOLDER`: every variant on a fresh {server}, the same
requests for both, alternating order, {repetitions} repetitions of each shape, prefix caching off. A difference is
claimed for one metric, named before; its interval (95 %) is over repetitions. {measured}.
"""
_SHAPES_HEAD = (
    "shape", "load", "median e2e, static", "continuous", "difference", "verdict", "p99 e2e", "median TTFT", "p99 TTFT",
    "median ITL", "p99 ITL", "tokens/s",
)  # fmt: skip


def render_markdown(shapes: Sequence[Part], chunked: Part | None, sweep: Sweep | None, tuned: str | None) -> str:
    """The page. Images are named as `charts` names them."""
    parts = [_head(shapes)]
    parts += ["## Static against continuous\n", _table(_SHAPES_HEAD, [_shape_row(part) for part in shapes])]
    parts += [_conclude(shapes), _problems(shapes)]
    if chunked is not None:
        question = f"{chunked.report.question} {chunked.report.repetitions} repetitions.\n"
        parts += ["## Prompts in chunks\n", question, *_differences(chunked)]
        parts += [f"![]({chart_name(chart)})\n" for chart in chunked.charts]
    if sweep is not None:
        parts += ["## More and more users\n", _sweep_table(sweep)]
        parts += [f"![]({chart_name(chart)})\n" for chart in sweep_charts(sweep)]
    if tuned is not None:
        parts += ["## What `chairlift tune` chose, and why\n", f"```toml\n{tuned.strip()}\n```\n"]
    return "\n".join(part for part in parts if part)


def chart_name(chart: Chart) -> str:
    """File name of a chart."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in chart.title.lower())
    return "-".join(filter(None, kept.split("-"))) + ".svg"


def sweep_charts(sweep: Sweep) -> list[Chart]:
    """Throughput and tails over users."""
    points = sweep.points

    def line(name: str, field: str) -> Series:
        return Series(name, [(one.users, getattr(one, field)) for one in points])

    return [
        Chart(
            title="Throughput by users",
            x_label="users at once",
            y_label="output tokens/s",
            series=[line("tokens/s", "output_throughput")],
            is_log_x=True,
        ),
        Chart(
            title="Gaps between tokens by users",
            x_label="users at once",
            y_label="ms",
            series=[line("median", "median_itl_ms"), line("p99", "p99_itl_ms")],
            is_log_x=True,
        ),
    ]


def _head(shapes: Sequence[Part]) -> str:
    first, report = shapes[0].conditions, shapes[0].report
    known = [part.conditions.foreign_cores for part in shapes if part.conditions.foreign_cores is not None]
    foreign = f"{max(known):.2f}" if known else "an unknown number of"
    if report.is_simulated:
        server = "simulated replica, whose steps cost what a linear model says (no machine's figures)"
        measured = f"Simulated {first.date[:10]}"
    else:
        server = "stack of the built-in model"
        measured = (
            f"Measured {first.date[:10]} on {describe_place(first)},\n"
            f"other programs of the machine used at most {foreign} cores meanwhile"
        )
    return _HEAD.format(server=server, repetitions=report.repetitions, measured=measured)


def _shape_row(part: Part) -> tuple[str, ...]:
    (comparison,) = part.report.comparisons
    primary = _find(comparison, part.report.primary)
    return (
        part.name,
        _load(part),
        f"{primary.ours:.0f} ms",
        f"{primary.theirs:.0f} ms",
        _change(primary),
        primary.verdict.value,
        _both(comparison, "p99_e2el_ms", "ms"),
        _both(comparison, "median_ttft_ms", "ms"),
        _both(comparison, "p99_ttft_ms", "ms"),
        _both(comparison, "median_itl_ms", "ms"),
        _both(comparison, "p99_itl_ms", "ms"),
        _both(comparison, "output_throughput", ""),
    )


def _conclude(shapes: Sequence[Part]) -> str:
    found = [(part.name, _find(part.report.comparisons[0], part.report.primary).verdict) for part in shapes]
    told = {
        "Continuous batching is better in": [name for name, verdict in found if verdict is Verdict.BETTER],
        "It is worse in": [name for name, verdict in found if verdict is Verdict.WORSE],
        "No difference can be told in": [
            name for name, verdict in found if verdict in (Verdict.NOISE, Verdict.UNKNOWN)
        ],
    }
    lines = [f"{start}: {'; '.join(names)}." for start, names in told.items() if names]
    why = (
        "Static batching lets nobody in until the longest of a batch is done: a request waits for its batch to start "
        "and holds its seat to the batch's end. Where requests do not meet, there is nothing to gain."
    )
    return "\n".join([*lines, why, ""])


def _problems(shapes: Sequence[Part]) -> str:
    lines = [f"- {part.name}: {problem}" for part in shapes for problem in part.report.problems]
    return "Noted by the experiments themselves:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _differences(part: Part) -> list[str]:
    found: list[str] = []
    names = ("p99_itl_ms", "median_itl_ms", "median_ttft_ms", "p99_ttft_ms", "median_e2el_ms", "output_throughput")
    for comparison in part.report.comparisons:
        header = ("metric", comparison.against, comparison.variant, "difference", "verdict")
        rows = [
            (one.metric, f"{one.ours:.4g}", f"{one.theirs:.4g}", _change(one), one.verdict.value)
            for one in comparison.differences
            if one.metric in names
        ]
        found += [f"{comparison.claim}.\n", _table(header, rows)]
    return found


def _sweep_table(sweep: Sweep) -> str:
    header = ("users", "tokens/s", "TTFT p50 / p99, ms", "ITL p50 / p99, ms", "peak KV use", "preemptions")
    rows = [
        (
            str(one.users),
            f"{one.output_throughput:.0f}",
            f"{one.median_ttft_ms:.0f} / {one.p99_ttft_ms:.0f}",
            f"{one.median_itl_ms:.1f} / {one.p99_itl_ms:.1f}",
            "–" if one.kv_used_share_max is None else f"{one.kv_used_share_max:.0%}",
            str(one.preemptions),
        )
        for one in sweep.points
    ]
    knee = find_knee(sweep.points)
    said = (
        "No knee yet: every doubling still gave 10 % more tokens or better"
        if knee is None
        else f"The knee is at {knee} users: from there on, twice as many give less than 10 % more tokens, and every "
        "token waits longer"
    )
    return _table(header, rows) + f"\n{said}. One run each, the workload `mixed`.\n"


def _find(comparison: VariantDifference, metric: str) -> Difference:
    return next(one for one in comparison.differences if one.metric == metric)


def _both(comparison: VariantDifference, metric: str, unit: str) -> str:
    one = _find(comparison, metric)
    return f"{one.ours:.0f} → {one.theirs:.0f} {unit}".rstrip()


def _change(one: Difference) -> str:
    relative = "" if one.relative is None else f"{one.relative:+.0%}"
    if one.interval is None or not one.ours:
        return relative
    return f"{relative} [{one.interval.low / one.ours:+.0%}, {one.interval.high / one.ours:+.0%}]"


def _load(part: Part) -> str:
    conditions = part.conditions
    if conditions.request_rate is not None:
        told = f"{conditions.request_rate:g} requests/s"
        if conditions.workload != "sparse" or conditions.request_rate == SPARSE_RATE:
            return told
        return f"{told}, {conditions.request_rate / SPARSE_RATE:g} times the workload's own rate"
    return f"{conditions.max_concurrency} users" if conditions.max_concurrency else "all at once"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
