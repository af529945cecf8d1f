"""`chairlift tune`: finds the settings with the most throughput within latency objectives, and writes them down."""

import argparse
from pathlib import Path

from chairlift.runtime.settings_loader import add_settings_arguments
from deploy.bench.arguments import (
    add_simulator_arguments,
    add_workload_arguments,
    new_file,
    non_negative_int,
    positive,
    positive_int,
    seconds,
)
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Objectives, workload, bounds, and where it runs."""
    parser.add_argument("--slo-ttft-p99-ms", type=positive, default=1000.0, metavar="MS", help="(1000)")
    parser.add_argument("--slo-itl-p99-ms", type=positive, default=100.0, metavar="MS", help="(100)")
    server = parser.add_argument_group("a running server, instead of stacks of its own")
    server.add_argument("--target", metavar="ADDR", help="public address; knobs change while it serves")
    server.add_argument("--ops", metavar="ADDR", help="operator's address; its changes need an admin's token")
    server.add_argument("--tls", action="store_true", help="TLS with the machine's certificates")
    server.add_argument("--tls-ca", type=Path, metavar="FILE", help="TLS, trusting these certificates")
    server.add_argument("--keep", action="store_true", help="leave what was chosen in force, instead of rolling back")
    server.add_argument(
        "--tenant-keys", type=Path, metavar="FILE.toml", help='for workloads with tenants: tenant = "token" each'
    )
    add_workload_arguments(parser)
    search = parser.add_argument_group("search")
    search.add_argument("--num-requests", type=positive_int, default=48, metavar="N", help="a trial, at least (48)")
    search.add_argument(
        "--warmup",
        type=non_negative_int,
        default=8,
        metavar="N",
        help="uncounted requests (8); the scheduler needs some before it knows what steps cost and can keep a target",
    )
    search.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="of one request (600)")
    search.add_argument("--max-concurrency", type=positive_int, default=256, metavar="N", help="most users tried (256)")
    search.add_argument("--max-trials", type=positive_int, default=48, metavar="N", help="(48)")
    search.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="KNOB=LOW:HIGH",
        help="of max_num_seqs, max_num_batched_tokens or itl_target_ms; may be repeated",
    )
    search.add_argument(
        "--repetitions", type=non_negative_int, default=3, metavar="N", help="of the choice against the start (3)"
    )
    search.add_argument("--journal", type=new_file, metavar="FILE", help="keep trials, go on with those of before")
    parser.add_argument(
        "--output", type=new_file, metavar="FILE.toml", help="write the chosen settings with the evidence"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_simulator_arguments(parser)
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tunes and reports."""
    with bench_errors():
        from deploy.bench.commands import tune

        return tune.run(arguments)
