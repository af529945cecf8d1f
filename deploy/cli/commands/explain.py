"""`chairlift explain`: tells where the time of a request went."""

import argparse
import json

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import server_errors
from deploy.cli.request_flags import add_connection_flags, chosen_target, connection_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which request."""
    parser.add_argument("request_id", metavar="ID", help="of a living or recently ended request of this caller's")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    add_connection_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks and prints."""
    from chairlift.client import DEFAULT_TARGET, Client

    target = chosen_target(arguments) or DEFAULT_TARGET
    with server_errors(target), Client(**connection_options(arguments, target)) as client:
        told = client.explain(arguments.request_id)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(told), indent=2))
        return ExitCode.OK
    waits = dict(sorted(told.waits.items(), key=lambda entry: -entry[1]))
    lines = {
        "request": told.request_id,
        "state": told.state.value,
        "total": _ms(told.total_ms),
        "waited": _ms(told.wait_ms),
        **{f"  for {reason}": _ms(wait_ms) for reason, wait_ms in waits.items()},
        "iterations": f"{told.iterations}, {told.prefill_chunks} of them with prompt tokens",
        "tokens": f"{told.prompt_tokens} prompt ({told.cached_tokens} cached), {told.output_tokens} output",
        "preemptions": f"{told.preemptions}, {told.swaps} of them swapped",
    }
    if told.queue_position is not None:
        lines["ahead in the queue"] = str(told.queue_position)
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        print(f"{name:<{width}}{value}")
    return ExitCode.OK


def _ms(value: float) -> str:
    return f"{value:,.1f} ms"
