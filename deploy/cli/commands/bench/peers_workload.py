"""`chairlift bench peers-workload`: a stack of its own under the workload that other servers were measured with."""

import argparse

from chairlift.runtime.settings_loader import add_settings_arguments
from deploy.bench.arguments import positive_int
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of the command."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--single", action="store_true", help="one request alone: 128 tokens in, 128 out")
    shape.add_argument("--prefill", action="store_true", help="one request alone: 1,024 tokens in, 1 out")
    parser.add_argument("--concurrency", type=positive_int, default=32, metavar="N", help="seats of the batch (32)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(bfloat16)")
    parser.add_argument("--quantization", metavar="KIND", help="of the weights, as the setting model.quantization")
    parser.add_argument("--repetitions", type=positive_int, default=3, metavar="N", help="medians over so many (3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    with bench_errors():
        from deploy.bench.commands import peers_workload

        return peers_workload.run(arguments)
