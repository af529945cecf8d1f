"""`chairlift simulate`: runs the real scheduler through hours of load in minutes, a cost model for the device."""

import argparse
from pathlib import Path

from chairlift.runtime.settings_loader import add_settings_arguments
from deploy.bench.arguments import new_file, positive, positive_int, rate
from deploy.cli.bench_errors import bench_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Load, device, objectives, and what is written."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace",
        metavar="FILE|poisson|burst",
        default="poisson",
        help="a trace (Azure's .csv, Mooncake's .jsonl), or arrivals drawn at random (poisson)",
    )
    load.add_argument("--rate-scale", type=rate, default=1.0, metavar="X", help="arrivals come X times as fast (1)")
    load.add_argument("--rate", type=rate, default=8.0, metavar="R", help="requests a second, where drawn (8)")
    load.add_argument(
        "--num-requests", type=positive_int, metavar="N", help="default: all of a trace, 2000 where drawn"
    )
    load.add_argument(
        "--lengths", choices=("conversation", "heavy"), default="conversation", help="where drawn (conversation)"
    )
    load.add_argument(
        "--tenants", type=positive_int, default=1, metavar="N", help="deal the requests out to N, unevenly (1)"
    )
    load.add_argument("--flood", type=rate, metavar="R", help="one more tenant sends R requests a second meanwhile")
    load.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    device = parser.add_argument_group("device")
    device.add_argument(
        "--model-cost",
        metavar="FILE|measured",
        help="JSON with fixed_us, decode_row_us, prefill_token_us, kv_token_ns, num_blocks, …; or a recording: what "
        "that scheduler had learnt; or measured: this machine, now. Default: like an 8B model on one H100",
    )
    goodput = parser.add_argument_group("objectives of a good request")
    goodput.add_argument("--slo-ttft-ms", type=positive, default=1000.0, metavar="MS", help="(1000)")
    goodput.add_argument("--slo-tpot-ms", type=positive, default=100.0, metavar="MS", help="mean, a token (100)")
    result = parser.add_argument_group("result")
    result.add_argument("--json", action="store_true", help="print the figures as JSON")
    result.add_argument("--html", type=new_file, metavar="FILE.html", help="write a page with figures and plots")
    result.add_argument("--svg", type=Path, metavar="FOLDER", help="write the plots, a file each")
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulates and reports."""
    with bench_errors():
        from deploy.bench.commands import simulate

        return simulate.run(arguments)
