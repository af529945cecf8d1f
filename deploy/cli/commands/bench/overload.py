"""`chairlift bench overload`: the rate that is sustained, and what twice and five times as much do."""

import argparse
import asyncio
import sys

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import positive
from deploy.cli.bench_errors import bench_errors
from deploy.cli.stack_flags import add_model_flags, settings_from

_BENEATH = (
    "model.max_model_len=2048",
    "gateway.listen=127.0.0.1:0",
    "scheduler.ttft_slo_ms=800",
    "scheduler.itl_target_ms=100",
    "telemetry.log_level=warning",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long a rate is looked at, and the settings of the stack."""
    parser.add_argument("--window", type=positive, default=60.0, metavar="S", help="seconds a rate (60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals (0)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs and reports; failed where anything is not as it should be."""
    with bench_errors():
        from deploy.bench.overload.run import render, run_overload

        settings = settings_from(arguments, beneath=_BENEATH)
        report = asyncio.run(run_overload(settings, arguments.window, arguments.seed))
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if arguments.json else render(report))
    return ExitCode.FAILED if report.complaints else ExitCode.OK
