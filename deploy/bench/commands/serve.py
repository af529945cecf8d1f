"""`chairlift bench serve`: plays a workload against a running server and reports what it measured."""

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.commands.choices import (
    WARMUP_SEED_STEP,
    add_load_arguments,
    add_openai_arguments,
    add_target_arguments,
    add_workload_arguments,
    open_client,
    read_objectives,
    read_ops_target,
    read_plan,
    read_workload,
)
from deploy.bench.figures.slo import ObjectiveError
from deploy.bench.figures.summary import RunSummary
from deploy.bench.load.client import StreamClient, TargetError
from deploy.bench.load.clock import Clock, MonotonicClock
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.csv_file import write_csv
from deploy.bench.output.progress import ProgressBar
from deploy.bench.output.result import RunResult, to_json_fields, write_result
from deploy.bench.output.table import format_run
from deploy.bench.workload.request import WorkloadError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of the command."""
    add_target_arguments(parser)
    add_openai_arguments(parser)
    add_workload_arguments(parser)
    add_load_arguments(parser)
    group = parser.add_argument_group("result")
    group.add_argument("--label", default="", help="name of this run in comparisons")
    group.add_argument("--token-digests", action="store_true", help="record a hash of each output's tokens")
    group.add_argument("--json", action="store_true", help="print the figures as JSON")
    group.add_argument("--output", type=Path, metavar="FILE.json", help="write figures and every request")
    group.add_argument("--csv", type=Path, metavar="FILE.csv", help="write one line a request")
    group.add_argument("--html", type=Path, metavar="FILE.html", help="write a report with plots")


def run(arguments: argparse.Namespace) -> int:
    """Exit code: failed when no request came to its end, usage error when it could not be started."""
    try:
        result = asyncio.run(_measure(arguments))
    except (TargetError, WorkloadError, ObjectiveError) as error:
        print(f"chairlift bench serve: {error}", file=sys.stderr)
        return ExitCode.USAGE
    summary = result.summarize()
    try:
        _write_files(arguments, result, summary)
    except OSError as error:
        print(f"chairlift bench serve: {error.filename}: {error.strerror}", file=sys.stderr)
        return ExitCode.FAILED
    if arguments.json:
        print(msgspec.json.encode(to_json_fields(result, summary, with_details=False)).decode())
    else:
        print(format_run(result, summary))
    return ExitCode.OK if summary.completed else ExitCode.FAILED


async def _measure(arguments: argparse.Namespace) -> RunResult:
    clock = MonotonicClock()
    client = open_client(arguments, clock)
    try:
        return await _measure_with(client, arguments, clock)
    finally:
        await client.close()


async def _measure_with(client: StreamClient, arguments: argparse.Namespace, clock: Clock) -> RunResult:
    model = await client.describe()
    plan = read_plan(arguments, wants_ids=arguments.token_digests)
    wanted = Measurement(
        backend="openai" if arguments.openai else "chairlift",
        model=model,
        workload=read_workload(arguments, model.vocab_size, model.max_model_len),
        plan=plan,
        warmup=read_workload(arguments, model.vocab_size, model.max_model_len, seed_shift=WARMUP_SEED_STEP),
        num_warmups=arguments.warmup,
        objectives=read_objectives(arguments),
        ops=None if arguments.openai else read_ops_target(arguments),
        label=arguments.label,
    )
    bar = ProgressBar(plan.num_sessions, plan.duration_s)

    def on_end(record: RequestRecord) -> None:
        is_ok = record.outcome in (Outcome.OK, Outcome.SHORT, Outcome.ABANDONED)
        bar.advance(num_tokens=record.output_tokens, is_ok=is_ok)

    try:
        return await measure(client, wanted, clock, on_end)
    finally:
        bar.close()


def _write_files(arguments: argparse.Namespace, result: RunResult, summary: RunSummary) -> None:
    if arguments.output is not None:
        write_result(arguments.output, result, summary)
    if arguments.csv is not None:
        write_csv(arguments.csv, result.records)
