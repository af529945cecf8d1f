"""`chairlift bench scheduler`: what the scheduler's core costs a step, alone and without a device."""

import argparse
import json
from pathlib import Path

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import positive_int
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is measured, beside whom, and the form of the output."""
    parser.add_argument("--steps", type=positive_int, default=600, metavar="N", help="measured steps a figure (600)")
    parser.add_argument(
        "--rounds", type=positive_int, default=3, metavar="N", help="of which the quietest counts, figure by figure (3)"
    )
    parser.add_argument(
        "--vllm",
        type=Path,
        metavar="PYTHON",
        help="measure vLLM's scheduler beside it, with the Python of an environment that has vLLM",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    with bench_errors():
        from deploy.bench import scheduler
        from deploy.bench.beside.measure_vllm import measure_vllm_scheduler

        result = scheduler.run(arguments.steps, arguments.rounds)
        if arguments.vllm is not None:
            result["vllm"] = measure_vllm_scheduler(arguments.vllm, min(arguments.steps, 200), scheduler.RUNNING)
        print(json.dumps(result) if arguments.json else scheduler.table(result))
    return ExitCode.OK
