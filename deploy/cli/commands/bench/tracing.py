"""`chairlift bench tracing`: what exporting traces costs, in CPU time a token."""

import argparse
import asyncio

import msgspec

from deploy.bench.arguments import positive_int, share
from deploy.cli.bench_errors import bench_errors
from deploy.cli.stack_flags import add_model_flags, settings_from

MAX_OVERHEAD = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much, of what."""
    add_model_flags(parser)
    parser.add_argument("--pairs", type=positive_int, default=10, metavar="N", help="pairs of fresh stacks (10)")
    parser.add_argument("--runs", type=positive_int, default=4, metavar="N", help="of each in a pair, in turn (4)")
    parser.add_argument("--share", type=share, default=0.1, metavar="S", help="of traces that are sampled (0.1)")
    parser.add_argument("--requests", type=positive_int, default=16, metavar="N", help="of a run, all at once (16)")
    parser.add_argument("--output-tokens", type=positive_int, default=64, metavar="N", help="of a request (64)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; 1 where the upper bound of the overhead is 2 % or more."""
    with bench_errors():
        from deploy.bench.tracing import TracingPlan, describe, measure_tracing

        plan = TracingPlan(
            pairs=arguments.pairs,
            runs=arguments.runs,
            share=arguments.share,
            requests=arguments.requests,
            output_tokens=arguments.output_tokens,
        )
        cost = asyncio.run(measure_tracing(plan, settings_from(arguments)))
        print(msgspec.json.encode(cost).decode() if arguments.json else describe(cost), end="\n" * arguments.json)
        return 0 if cost.overhead.high < MAX_OVERHEAD else 1
