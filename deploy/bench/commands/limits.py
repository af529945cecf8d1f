"""What the load generator itself can drive on this machine."""

import argparse
import asyncio

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.limits import measure_limits
from deploy.bench.output.table import format_table


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. Raises TargetError."""
    limits = asyncio.run(measure_limits(arguments.seconds))
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
