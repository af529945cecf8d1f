"""Conducts an experiment on stacks of its own or on the simulator, and reports it."""

import argparse
import asyncio
import sys

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.commands.files import read_cost, write_json, write_text
from deploy.bench.experiment.conduct import Conducted, conduct
from deploy.bench.experiment.definition import Experiment, ExperimentError, Variant, load_experiment, ready_made
from deploy.bench.experiment.laboratory import Laboratory, OwnStackLaboratory, SimulatedLaboratory
from deploy.bench.experiment.verdict import ExperimentReport, judge
from deploy.bench.output.difference_table import format_differences
from deploy.bench.output.html_report import render_report
from deploy.bench.output.plots import plot_all
from deploy.bench.output.result import RunResult
from deploy.bench.output.svg import render_chart_file
from deploy.bench.output.table import format_table


def run(arguments: argparse.Namespace) -> int:
    """Exit code: failed where a server that promises the same tokens gave others. Raises as the launcher does."""
    if arguments.list:
        rows = [(name, load_experiment(name).question) for name in ready_made()]
        print("\n".join(f"{name}\n    {question}" for name, question in rows))
        return ExitCode.OK
    experiment = _read_experiment(arguments)
    laboratory = _find_laboratory(arguments)
    conducted = asyncio.run(conduct(experiment, laboratory, _tell))
    report = judge(conducted, is_simulated=arguments.simulate)
    _write_files(arguments, conducted, report)
    print(msgspec.json.encode(report).decode() if arguments.json else _format(report))
    return ExitCode.OK if report.same_tokens or not conducted.is_deterministic else ExitCode.FAILED


def _read_experiment(arguments: argparse.Namespace) -> Experiment:
    if arguments.experiment is None:
        raise ExperimentError("name an experiment; --list tells those that are ready-made")
    found = load_experiment(arguments.experiment, allows_several_variables=arguments.allow_several_variables)
    replace = msgspec.structs.replace
    if arguments.repetitions is not None:
        found = replace(found, repetitions=arguments.repetitions)
    if arguments.num_requests is not None:
        variants = tuple(
            replace(variant, workload=replace(variant.workload, num_requests=arguments.num_requests))
            for variant in found.variants
        )
        found = replace(found, variants=variants)
    return found


def _find_laboratory(arguments: argparse.Namespace) -> Laboratory:
    if arguments.simulate:
        return SimulatedLaboratory(arguments.config, tuple(arguments.overrides), read_cost(arguments.device_cost))
    return OwnStackLaboratory(arguments.config, tuple(arguments.overrides))


def _tell(variant: Variant, repetition: int, result: RunResult) -> None:
    summary = result.summarize()
    ttft = summary.latencies.get("ttft")
    told = f", median TTFT {ttft.percentiles[50.0]:.0f} ms" if ttft else ""
    print(
        f"{variant.name}, repetition {repetition + 1}: {summary.completed} of {len(result.records)} requests, "
        f"{summary.output_throughput:.1f} tok/s{told}",
        file=sys.stderr,
    )


def _write_files(arguments: argparse.Namespace, conducted: Conducted, report: ExperimentReport) -> None:
    if arguments.output is not None:
        for side in conducted.variants:
            for repetition, result in enumerate(side.runs):
                path = arguments.output / f"{report.name}-{side.variant.name}-{repetition}.json"
                write_json(path, result, result.summarize())
        for chart in plot_all([(side.variant.name, side.runs[0]) for side in conducted.variants]):
            path = arguments.output / f"{report.name}-{chart.title.lower().replace(' ', '-')}.svg"
            write_text(path, render_chart_file(chart))
    if arguments.html is not None:
        runs = [(side.variant.name, side.runs[0]) for side in conducted.variants]
        tables = [(f"{one.variant} against {one.against}: {one.claim}", one.differences) for one in report.comparisons]
        page = render_report(
            f"Experiment {report.name}",
            runs,
            [result.summarize() for _, result in runs],
            question=f"{report.question} (plots: the first of {report.repetitions} repetitions)",
            differences=tables,
            warnings=report.problems,
        )
        write_text(arguments.html, page)


def _format(report: ExperimentReport) -> str:
    where = "on the simulator" if report.is_simulated else "on stacks of its own"
    tokens = "all the same" if report.same_tokens else "NOT the same"
    conduct = (
        f"varies: {', '.join(report.variables)}; {report.repetitions} repetitions {where}, alternating; "
        f"{report.num_outputs_compared} outputs compared, {tokens}"
    )
    parts = [f"{report.name}: {report.question}", conduct]
    parts += [f"problem: {problem}" for problem in report.problems]
    rows = [
        (
            one.name,
            f"{one.figures.get(report.primary, float('nan')):.4g}",
            "–" if one.kv_used_share_max is None else f"{one.kv_used_share_max:.1%}",
            f"{one.preemptions}",
            f"{one.errors}",
        )
        for one in report.variants
    ]
    parts += ["", format_table(rows, ("variant", report.primary, "peak KV use", "preemptions", "errors"))]
    for comparison in report.comparisons:
        parts += ["", comparison.claim, format_differences(comparison.differences)]
    return "\n".join(parts)
