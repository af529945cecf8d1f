"""`chairlift bench study`: compares the scheduler's ways in virtual time and writes the report with its plots."""

import argparse
from pathlib import Path

from deploy.bench.arguments import positive_int
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, the size, and what is measured besides."""
    parser.add_argument("--trace", required=True, metavar="FILE.csv", help="the Azure conversation trace")
    parser.add_argument("--num-requests", type=positive_int, default=3000, metavar="N", help="of each load (3000)")
    parser.add_argument(
        "--speed", type=Path, metavar="FILE.json", help="what chairlift bench scheduler --json printed, for its section"
    )
    parser.add_argument("--scale", action="store_true", help="measure a simulation of 100,000 requests too")
    parser.add_argument(
        "--output", type=Path, default=Path("deploy/bench/reports"), metavar="FOLDER", help="(deploy/bench/reports)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the report."""
    with bench_errors():
        from deploy.bench.commands import study

        return study.run(arguments)
