"""The scheduler's report: runs the experiments, writes tables, plots and the command for each line."""

import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from chairlift.runtime.settings_loader import load_settings
from deploy.bench.output.svg import Chart, Series, render_chart_file
from deploy.bench.study.experiments import LabelledLoad, StudyExperiment, Variant, all_experiments
from deploy.bench.study.load import FLOOD, StudyLoad
from deploy.bench.study.model_cost import ModelCost
from deploy.bench.study.output import charts
from deploy.bench.study.run import StudyResult, run_study
from deploy.bench.study.speed import describe_scale, describe_speed
from scheduler_svc.core.units import to_config
from scheduler_svc.sim.outcome import Objective, Report

PLOTS = "scheduler"
"""The folder of plots and cost files beside the report."""

_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("output tokens/s", lambda r: f"{r.output_tokens_per_s:.0f}"),
    ("TTFT p50 / p99 (ms)", lambda r: f"{r.ttft_ms.p50:.0f} / {r.ttft_ms.p99:.0f}"),
    ("ITL p50 / p99 / max (ms)", lambda r: f"{r.itl_ms.p50:.1f} / {r.itl_ms.p99:.1f} / {r.itl_ms.max:.0f}"),
    ("queueing p99 (ms)", lambda r: f"{r.queue_ms.p99:.0f}"),
    ("end to end p50 / p99 (ms)", lambda r: f"{r.e2e_ms.p50:.0f} / {r.e2e_ms.p99:.0f}"),
    ("goodput (share)", lambda r: f"{r.goodput_share:.1%}"),
    ("preemptions / blocks swapped", lambda r: f"{r.preemptions} / {r.swapped_blocks}"),
    ("KV use, mean / peak", lambda r: f"{r.kv_mean:.0%} / {r.kv_peak:.0%}"),
)

_INTRO = """# The scheduler, compared with itself

The real core in virtual time, with a device whose steps cost what a linear model says: {cost}
That is like an 8B model in bfloat16 on one H100; a block is 16 tokens. It tells ways to schedule apart, not machines.
Each comparison changes one setting. A good request has its first token within 1 s and then a token each 100 ms in the
mean. Loads: the first {count} requests of the Azure LLM inference trace 2023, conversation (`AZURE` below is its path),
and a heavy-tailed mix of as many (log-normal prompts and outputs, most short, a few enormous).

Made by `chairlift bench study --trace AZURE{flags}`; the same figures each time, but for those of speed.
"""


class Written(msgspec.Struct):
    """The report while it is made."""

    folder: Path
    lines: list[str] = []
    num_plots: int = 0

    def plot(self, name: str, chart: Chart) -> None:
        """Writes a plot and shows it."""
        path = self.folder / PLOTS / f"{name}.svg"
        path.write_text(render_chart_file(chart), encoding="utf-8")
        self.lines += [f"![{chart.title}]({PLOTS}/{path.name})", ""]
        self.num_plots += 1


def write_report(
    folder: Path,
    trace: str,
    num_requests: int,
    speed: dict[str, Any] | None,
    scale: dict[str, float] | None,
    flags: str,
) -> Path:
    """Runs everything; returns the path of the report. Raises TraceError and OSError."""
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    written = Written(folder)
    written.lines += _INTRO.format(cost=_describe_cost(ModelCost()), count=num_requests, flags=flags).splitlines()
    for experiment in all_experiments(trace, num_requests):
        written.lines += [
            "",
            f"## {experiment.title}",
            "",
            f"Changed: `{experiment.variable}`.",
            "",
            experiment.why,
            "",
        ]
        if experiment.cost != ModelCost():
            _write_cost(written, experiment)
        for load in experiment.loads:
            if load.rate_scales:
                _raise_load(written, experiment, load)
            else:
                _compare(written, experiment, load)
    if speed is not None:
        written.lines += ["", *describe_speed(speed)]
    if scale is not None:
        written.lines += ["", *describe_scale(scale)]
    path = folder / "scheduler.md"
    path.write_text("\n".join(written.lines) + "\n", encoding="utf-8")
    return path


def _describe_cost(cost: ModelCost) -> str:
    return (
        f"{cost.fixed_us / 1000:g} ms, {cost.decode_row_us:g} µs a decode row, {cost.prefill_token_us:g} µs a prompt "
        f"token and {cost.kv_token_ns:g} ns a position that attention reads; {cost.num_blocks} KV blocks, "
        f"{cost.max_num_seqs} seats, {cost.max_num_batched_tokens} tokens a step."
    )


def _write_cost(written: Written, experiment: StudyExperiment) -> None:
    """What differs from the usual device, as a file for `--model-cost`."""
    fields = {
        name: getattr(experiment.cost, name)
        for name in ModelCost.__struct_fields__
        if getattr(experiment.cost, name) != getattr(ModelCost(), name)
    }
    path = written.folder / PLOTS / f"{experiment.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fields)) + b"\n")
    told = ", ".join(f"{name} {value}" for name, value in fields.items())
    written.lines += [f"The device differs ([{path.name}]({PLOTS}/{path.name})): {told}.", ""]


def _study(experiment: StudyExperiment, variant: Variant, load: StudyLoad) -> StudyResult:
    settings = load_settings(None, [*experiment.base, *variant.overrides], {})
    config = to_config(settings.scheduler)
    return run_study(load.arrivals(), config, experiment.cost.hardware(), Objective(), sample_every_s=5.0)


def _command(experiment: StudyExperiment, variant: Variant, load: StudyLoad) -> str:
    is_drawn = load.source == "poisson"
    parts = ["chairlift", "simulate", "--trace", "poisson" if is_drawn else "AZURE"]
    if is_drawn:
        parts += ["--lengths", load.lengths, "--rate", f"{load.rate:g}"]
    if load.rate_scale != 1.0:
        parts += ["--rate-scale", f"{load.rate_scale:g}"]
    parts += ["--num-requests", f"{load.num_requests}"]
    if load.flood_rate is not None:
        parts += ["--flood", f"{load.flood_rate:g}"]
    if experiment.cost != ModelCost():
        parts += ["--model-cost", f"{PLOTS}/{experiment.name}.json"]
    parts += [part for override in (*experiment.base, *variant.overrides) for part in ("--set", override)]
    return shlex.join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _compare(written: Written, experiment: StudyExperiment, labelled: LabelledLoad) -> None:
    studies = [(one.label, _study(experiment, one, labelled.load)) for one in experiment.variants]
    reports = [study.report for _, study in studies]
    rows = [[title, *map(tell, reports)] for title, tell in _ROWS]
    if labelled.load.flood_rate is not None:
        for name in reports[0].tenants:
            told = "flooding" if name == FLOOD else "quiet"
            cells = (f"{one.tenants[name].mean_ttft_ms:.0f} / {one.tenants[name].p99_ttft_ms:.0f}" for one in reports)
            rows.append([f"TTFT of the {told} tenant, mean / p99 (ms)", *cells])
    written.lines += _table([f"`{labelled.label}`", *(label for label, _ in studies)], rows)
    written.plot(f"{experiment.name}-{labelled.label}", charts(studies)[experiment.chart])
    commands = (_command(experiment, one, labelled.load) for one in experiment.variants)
    written.lines += ["```", *commands, "```", ""]


def _raise_load(written: Written, experiment: StudyExperiment, labelled: LabelledLoad) -> None:
    curves: dict[str, list[Report]] = {}
    for variant in experiment.variants:
        loads = (msgspec.structs.replace(labelled.load, rate_scale=scale) for scale in labelled.rate_scales)
        curves[variant.label] = [_study(experiment, variant, load).report for load in loads]
    rows = []
    for at, scale in enumerate(labelled.rate_scales):
        reports = [curve[at] for curve in curves.values()]
        rows.append(
            [
                f"{scale:g}",
                *(f"{one.output_tokens_per_s:.0f}" for one in reports),
                *(f"{one.ttft_ms.p50:.0f}" for one in reports),
                *(f"{one.e2e_ms.p50:.0f}" for one in reports),
            ]
        )
    header = [f"`{labelled.label}`, times its rate"]
    header += [f"{what}, {label}" for what in ("tokens/s", "TTFT p50 (ms)", "end to end p50 (ms)") for label in curves]
    written.lines += _table(header, rows)
    written.lines += [_verdict(experiment, labelled, curves), ""]
    series = [
        Series(label, [(one.output_tokens_per_s, one.e2e_ms.p50 / 1000) for one in c]) for label, c in curves.items()
    ]
    title = f"Latency by throughput, {labelled.label}"
    chart = Chart(title=title, x_label="output tokens/s", y_label="end to end p50 (s)", series=series)
    written.plot(f"{experiment.name}-{labelled.label}", chart)
    example = msgspec.structs.replace(labelled.load, rate_scale=experiment.equal_scale)
    written.lines += ["```", *(_command(experiment, one, example) for one in experiment.variants), "```", ""]


def _verdict(experiment: StudyExperiment, labelled: LabelledLoad, curves: dict[str, list[Report]]) -> str:
    at = labelled.rate_scales.index(experiment.equal_scale)
    latencies = " against ".join(f"{curve[at].e2e_ms.p50 / 1000:.1f} s {label}" for label, curve in curves.items())
    rates = " against ".join(f"{_rate_at(curve, experiment.equal_ms)} {label}" for label, curve in curves.items())
    return (
        f"At equal load ({experiment.equal_scale:g} times the rate), median end to end: {latencies}. At equal latency "
        f"({experiment.equal_ms / 1000:g} s in the median), output tokens/s: {rates}."
    )


def _rate_at(curve: Sequence[Report], latency_ms: float) -> str:
    """Throughput at which the curve reaches that latency, between its points, or beyond which end of it."""
    for lower, upper in pairwise(curve):
        if lower.e2e_ms.p50 <= latency_ms <= upper.e2e_ms.p50:
            share = (latency_ms - lower.e2e_ms.p50) / (upper.e2e_ms.p50 - lower.e2e_ms.p50)
            rate = lower.output_tokens_per_s + share * (upper.output_tokens_per_s - lower.output_tokens_per_s)
            return f"{rate:.0f}"
    if curve[-1].e2e_ms.p50 < latency_ms:
        return f"more than {curve[-1].output_tokens_per_s:.0f}"
    return f"less than {curve[0].output_tokens_per_s:.0f}"
