"""`chairlift bench scheduler`: what the scheduler's core costs a step, alone and without a device."""

import argparse
import json

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Number of steps, and the form of the output."""
    parser.add_argument("--steps", type=positive_int, default=600, metavar="N", help="measured steps a figure (600)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from deploy.bench import scheduler

    result = scheduler.run(arguments.steps)
    print(json.dumps(result) if arguments.json else scheduler.table(result))
    return ExitCode.OK
