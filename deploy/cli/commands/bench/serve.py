"""`chairlift bench serve`: plays a workload against a running server and reports what it measured."""

import argparse
from pathlib import Path

from deploy.bench.arguments import (
    add_load_arguments,
    add_openai_arguments,
    add_target_arguments,
    add_workload_arguments,
    new_file,
)
from deploy.cli.bench_errors import bench_errors


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
    group.add_argument("--csv", type=new_file, metavar="FILE.csv", help="write one line a request")
    group.add_argument("--html", type=new_file, metavar="FILE.html", help="write a report with plots")


def run(arguments: argparse.Namespace) -> int:
    """Measures and reports."""
    with bench_errors():
        from deploy.bench.commands import serve

        return serve.run(arguments)
