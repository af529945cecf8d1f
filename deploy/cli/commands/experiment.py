"""`chairlift experiment`: runs variants that differ in one variable under the same requests, and tells what it made."""

import argparse
from pathlib import Path

from chairlift.runtime.settings_loader import add_settings_arguments
from deploy.bench.arguments import add_simulator_arguments, new_file, positive_int
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An experiment, and where it runs."""
    parser.add_argument(
        "experiment",
        nargs="?",
        metavar="NAME|FILE.toml",
        help="a ready-made experiment (see --list), or a file like them",
    )
    parser.add_argument("--list", action="store_true", help="name the ready-made experiments and their questions")
    parser.add_argument("--repetitions", type=positive_int, metavar="N", help="runs of each variant")
    parser.add_argument("--num-requests", type=positive_int, metavar="N", help="sessions of each run")
    parser.add_argument(
        "--allow-several-variables", action="store_true", help="run variants that differ in more than one variable"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write each run's result and plots there")
    parser.add_argument("--html", type=new_file, metavar="FILE.html", help="write a report with plots")
    add_simulator_arguments(parser)
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Conducts and reports."""
    with bench_errors():
        from deploy.bench.commands import experiment

        return experiment.run(arguments)
