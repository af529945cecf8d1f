"""`chairlift bench limits`: what the load generator itself can drive on this machine."""

import argparse
import asyncio
import sys

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.commands.choices import positive
from deploy.bench.limits import measure_limits
from deploy.bench.load.client import TargetError
from deploy.bench.output.table import format_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of the command."""
    parser.add_argument("--seconds", type=positive, default=3.0, metavar="S", help="of each of four measurements (3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    try:
        limits = asyncio.run(measure_limits(arguments.seconds))
    except TargetError as error:
        print(f"chairlift bench limits: {error}", file=sys.stderr)
        return ExitCode.FAILED
    if arguments.json:
        print(msgspec.json.encode(limits).decode())
    else:
        rows = [
            ("Messages a second (one token each)", f"{limits.messages_per_s:.0f}"),
            ("Tokens a second, four a message", f"{limits.tokens_per_s_at_4:.0f}"),
            ("Requests a second (one token each)", f"{limits.requests_per_s:.0f}"),
            ("CPU time a message (µs)", f"{limits.us_per_message:.1f}"),
            ("CPU time a request (µs)", f"{limits.us_per_request:.1f}"),
            ("Time to first token reported too long by (ms)", f"{limits.ttft_error_ms:.3f}"),
            ("Inter-token latency reported too long by (ms)", f"{limits.itl_error_ms:.3f}"),
        ]
        print(format_table(rows))
    return ExitCode.OK
