"""`chairlift compare`: differences between results of `bench serve`, with intervals and a verdict."""

import argparse
from pathlib import Path

from deploy.bench.arguments import new_file
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two files, or two sets of them."""
    parser.add_argument("ours", type=Path, nargs="?", metavar="OURS.json", help="result to compare with")
    parser.add_argument("theirs", type=Path, nargs="?", metavar="THEIRS.json", help="result that is compared")
    parser.add_argument("--ours", dest="our_set", type=Path, nargs="+", metavar="FILE", help="several runs of one side")
    parser.add_argument("--theirs", dest="their_set", type=Path, nargs="+", metavar="FILE", help="and of the other")
    parser.add_argument(
        "--paired", action="store_true", help="run i of one side belongs to run i of the other: same requests, in turn"
    )
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    parser.add_argument("--html", type=new_file, metavar="FILE.html", help="write a report with plots")


def run(arguments: argparse.Namespace) -> int:
    """Compares and prints."""
    with bench_errors():
        from deploy.bench.commands import compare

        return compare.run(arguments)
