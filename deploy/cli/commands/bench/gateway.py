"""`chairlift bench gateway`: what a gateway process holds and costs, between a scheduler stand-in and real clients."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import positive_int

FIGURES = ("throughput", "streams", "latency", "back-pressure")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which figures, how long each, and the form of the output."""
    parser.add_argument("--only", choices=FIGURES, help="one figure alone (all)")
    parser.add_argument("--seconds", type=positive_int, default=10, metavar="N", help="measured time a figure (10)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from deploy.bench.gateway_front import figures

    seconds = arguments.seconds
    measures: dict[str, Callable[[], Any]] = {
        "throughput": lambda: {
            "one_token_a_message": figures.throughput(seconds, 1, 0.025),
            "four_tokens_a_message": figures.throughput(seconds, 4, 0.025),
        },
        "streams": figures.open_streams,
        "latency": lambda: figures.latency(50 * seconds),
        "back-pressure": lambda: figures.back_pressure(seconds),
    }
    wanted = [arguments.only] if arguments.only else FIGURES
    result = {name.replace("-", "_"): measures[name]() for name in wanted}
    print(json.dumps(result, indent=None if arguments.json else 2))
    return ExitCode.OK
