"""Plays a workload against a running server and reports what it measured."""

import argparse
import asyncio

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.commands.choices import open_client, read_objectives, read_ops_target, read_plan, read_workload
from deploy.bench.commands.files import write_json, write_table, write_text
from deploy.bench.figures.summary import RunSummary
from deploy.bench.load.client import StreamClient
from deploy.bench.load.clock import Clock, MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.html_report import render_report
from deploy.bench.output.progress import ProgressBar
from deploy.bench.output.result import RunResult, to_json_fields
from deploy.bench.output.table import format_run
from deploy.bench.workload.prompts import WARMUP_SEED_STEP


def run(arguments: argparse.Namespace) -> int:
    """Exit code: failed when no request came to its end. Raises BenchError."""
    result = asyncio.run(_measure(arguments))
    summary = result.summarize()
    _write_files(arguments, result, summary)
    if arguments.json:
        print(msgspec.json.encode(to_json_fields(result, summary, with_details=False)).decode())
    else:
        print(format_run(result, summary))
    return ExitCode.OK if summary.completed else ExitCode.FAILED


async def _measure(arguments: argparse.Namespace) -> RunResult:
    # What is wrong with the arguments is said before a server is asked anything.
    read_objectives(arguments)
    read_workload(arguments, None, None)
    plan = read_plan(arguments, wants_ids=arguments.token_digests)
    clock = MonotonicClock()
    client = open_client(arguments, clock)
    try:
        return await _measure_with(client, arguments, plan, clock)
    finally:
        await client.close()


async def _measure_with(client: StreamClient, arguments: argparse.Namespace, plan: LoadPlan, clock: Clock) -> RunResult:
    model = await client.describe()
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
        write_json(arguments.output, result, summary)
    if arguments.csv is not None:
        write_table(arguments.csv, result)
    if arguments.html is not None:
        title = f"{result.conditions.model.name} under {result.conditions.workload}"
        write_text(arguments.html, render_report(title, [(result.label or "run", result)], [summary]))
