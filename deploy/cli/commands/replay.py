"""`chairlift replay`: runs recorded scheduler events through the core again and compares every plan."""

import argparse
from pathlib import Path

from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One file of a recording."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of the folder that scheduler.record names")
    parser.add_argument(
        "--with",
        dest="changes",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="the same arrivals under another knob of the scheduler, for instance policy=fair; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.epilog = (
        "Exit codes: 0 every plan is the one made then (or: the comparison is done), 1 one differs or there is none, 2 "
        "the file is no recording or a damaged one, or a knob none. A file that ends in the middle of its last frame, "
        "as a process that died leaves it, is read up to there, and that is told."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the result, or the first difference; or what would have been."""
    with bench_errors():
        from deploy.bench.commands import replay

        return replay.run(arguments)
