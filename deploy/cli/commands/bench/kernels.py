"""`chairlift bench kernels`: each CPU kernel by itself, its time and its share of what the machine can do."""

import argparse

from deploy.bench.arguments import positive_int
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which kernels are measured, on what, and the form of the output."""
    parser.add_argument("--json", action="store_true", help="print one object, for programs")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="threads of the kernels (one a core)")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="times that each case runs (5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this")
    parser.add_argument(
        "--instruction-set", metavar="NAME", help="another than the machine's best: amx, v4-bf16, v4-vnni, v4, v3"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. 3 where there are no native kernels."""
    with bench_errors():
        from deploy.bench import kernels

        return kernels.run(arguments)
