"""Compares results that lie in files."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.commands.files import write_text
from deploy.bench.figures.comparison import Difference, Run, compare_runs
from deploy.bench.output.difference_table import format_differences
from deploy.bench.output.html_report import render_report
from deploy.bench.output.result import ResultError, RunResult, find_differences, read_result


def run(arguments: argparse.Namespace) -> int:
    """Prints every difference, and first the conditions in which the sides differ. Raises ResultError, BenchError."""
    our_paths, their_paths = _read_sides(arguments)
    ours, theirs = [read_result(path) for path in our_paths], [read_result(path) for path in their_paths]
    if arguments.paired and len(ours) != len(theirs):
        raise ResultError(f"--paired: {len(ours)} runs on one side, {len(theirs)} on the other")
    warnings = _find_warnings(ours, theirs)
    our_runs, their_runs = _to_runs(ours), _to_runs(theirs)
    differences = compare_runs(our_runs, their_runs, are_paired=arguments.paired)
    if arguments.json:
        print(msgspec.json.encode({"conditions": warnings, "differences": differences}).decode())
    else:
        for warning in warnings:
            print(f"differs: {warning}")
        print(format_differences(differences))
        print(_explain(differences, num_runs=len(ours) + len(theirs)))
    if arguments.html is not None:
        labelled = _label([*zip(our_paths, ours, strict=True), *zip(their_paths, theirs, strict=True)])
        page = render_report(
            "Comparison",
            labelled,
            [one.summary for one in (*our_runs, *their_runs)],
            differences=[("Differences", differences)],
            warnings=[f"The sides differ in {warning}" for warning in warnings],
        )
        write_text(arguments.html, page)
    return ExitCode.OK


def _read_sides(arguments: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    ours = list(arguments.our_set or ())
    theirs = list(arguments.their_set or ())
    if arguments.ours is not None and arguments.theirs is not None and not ours and not theirs:
        return [arguments.ours], [arguments.theirs]
    if arguments.ours is not None or not ours or not theirs:
        raise ResultError("expected OURS.json THEIRS.json, or --ours FILE … --theirs FILE …")
    return ours, theirs


def _to_runs(results: Sequence[RunResult]) -> list[Run]:
    return [Run(result.summarize(), result.records) for result in results]


def _find_warnings(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> list[str]:
    pairs = ((one.conditions, other.conditions) for one in ours for other in theirs)
    found = dict.fromkeys(warning for pair in pairs for warning in find_differences(*pair))
    return list(found)


def _label(results: Sequence[tuple[Path, RunResult]]) -> list[tuple[str, RunResult]]:
    return [(result.label or path.stem, result) for path, result in results]


def _explain(differences: Sequence[Difference], *, num_runs: int) -> str:
    if any(one.is_within_run for one in differences):
        return (
            "\nOne run a side: intervals cover chance within the runs, not from one run to the next. "
            "Repeat in alternating order and compare sets (--ours, --theirs, --paired)."
        )
    return f"\nIntervals over {num_runs} runs."
