"""`chairlift bench limits`: what the load generator itself can drive on this machine."""

import argparse

from deploy.bench.arguments import positive
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of the command."""
    parser.add_argument("--seconds", type=positive, default=3.0, metavar="S", help="of each of four measurements (3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    with bench_errors():
        from deploy.bench.commands import limits

        return limits.run(arguments)
