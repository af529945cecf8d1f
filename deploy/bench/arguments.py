"""Arguments that several commands share: target, workload, load, objectives. Imports nothing heavy, for `--help`."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from deploy.bench.workload.lengths import parse_length_range
from deploy.bench.workload.names import WORKLOADS, WorkloadError

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_OPS = "127.0.0.1:50052"
DEFAULT_CONCURRENCY = 8
DEFAULT_NUM_REQUESTS = 64

_T = TypeVar("_T")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    group = parser.add_argument_group("server")
    group.add_argument("--target", metavar="ADDR", default=DEFAULT_TARGET, help=f"public address ({DEFAULT_TARGET})")
    group.add_argument(
        "--ops", metavar="ADDR", help=f"operator's address; default {DEFAULT_OPS} where --target is the default"
    )
    group.add_argument("--tls", action="store_true", help="TLS with the machine's certificates")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="TLS, trusting these certificates")
    group.add_argument(
        "--tenant-keys", type=Path, metavar="FILE.toml", help='for workloads with tenants: tenant = "token" each'
    )
    group.add_argument("--connections", type=positive_int, default=1, metavar="N", help="gRPC connections (1)")


def add_openai_arguments(parser: argparse.ArgumentParser) -> None:
    """Another server, by HTTP."""
    group = parser.add_argument_group("another server, by OpenAI's HTTP interface")
    group.add_argument("--openai", metavar="URL", help="base URL, for instance http://127.0.0.1:8000/v1")
    group.add_argument("--model", help="model to ask for; default: the first that is listed")
    group.add_argument(
        "--prompt-form",
        choices=("ids", "text", "chat"),
        default="ids",
        help="token ids or as many words to /completions, or words to /chat/completions (ids)",
    )
    group.add_argument(
        "--extra-body",
        type=json_object,
        default={},
        metavar="JSON",
        help='added to each request, for instance {"cache_prompt": false}',
    )


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload",
        metavar="NAME|FILE",
        default="mixed",
        help=f"{', '.join(WORKLOADS)}, or a trace by path: Azure's .csv, Mooncake's .jsonl (mixed)",
    )
    group.add_argument("--prompt-tokens", type=checked(parse_length_range), metavar="N|LOW:HIGH")
    group.add_argument("--output-tokens", type=checked(parse_length_range), metavar="N|LOW:HIGH")
    group.add_argument("--length-scale", type=positive, default=1.0, metavar="F", help="on a trace's lengths (1)")
    group.add_argument(
        "--abandon-share", type=share, default=0.0, metavar="F", help="share of clients that go away in the middle (0)"
    )
    group.add_argument("--seed", type=non_negative_int, default=0, help="of prompts, lengths and arrivals (0)")


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """When it is asked."""
    group = parser.add_argument_group("load")
    group.add_argument("--rate", type=positive, metavar="R", help="open loop: requests a second; inf: all at once")
    group.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        metavar="B",
        help="of the gaps: 1 Poisson, below 1 bursts (gamma), inf constant (1)",
    )
    group.add_argument("--replay-speed", type=positive, metavar="F", help="a trace's own times, F times faster (1)")
    group.add_argument(
        "--concurrency",
        type=positive_int,
        metavar="N",
        help=f"closed loop: N users ({DEFAULT_CONCURRENCY}); with an open loop: the most at once, waiting counts",
    )
    group.add_argument(
        "--num-requests",
        "--num-prompts",
        type=positive_int,
        metavar="N",
        help=f"sessions to start ({DEFAULT_NUM_REQUESTS} unless --duration is given)",
    )
    group.add_argument("--duration", type=seconds, metavar="S", help="start none later than this")
    group.add_argument("--warmup", type=non_negative_int, default=4, metavar="N", help="uncounted requests before (4)")
    group.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="of one request (600)")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="KIND:MS",
        help="objectives of a good request: ttft:MS tpot:MS itl:MS e2el:MS",
    )


def add_simulator_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether it runs on the simulator."""
    group = parser.add_argument_group("simulator")
    group.add_argument("--simulate", action="store_true", help="the real scheduler with a modelled device, in no time")
    group.add_argument(
        "--device-cost",
        type=Path,
        metavar="FILE.json",
        help='its model: {"step_us": …, "decode_row_us": …, "prefill_token_us": …, "swap_block_us": …}',
    )


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """A parser of ours as argparse wants it: its own message, no traceback."""

    def parse_argument(text: str) -> _T:
        try:
            return parse(text)
        except WorkloadError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object: {error}") from None


def positive(text: str) -> float:
    """A number above 0, ``inf`` included."""
    return _number(text, math.nextafter(0.0, 1.0), math.inf, "a number above 0")


def seconds(text: str) -> float:
    """A time that ends: from a millisecond to a year."""
    return _number(text, 1e-3, 366 * 86_400, "seconds, a year at most")


def at_most(bound: int) -> Callable[[str], int]:
    """A whole number above 0, up to `bound`."""

    def parse_argument(text: str) -> int:
        value = positive_int(text)
        if value > bound:
            raise argparse.ArgumentTypeError(f"{text!r}: {bound:,} at most")
        return value

    return parse_argument


def new_file(text: str) -> Path:
    """A file that can be written, as far as can be told before there is anything to write."""
    path = Path(text)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: is no regular file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: may not be written")
    return path


def rate(text: str) -> float:
    """What virtual time can be filled with: a number from a millionth to a million."""
    return _number(text, 1e-6, 1e6, "a number from 1e-6 to 1e6")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, 0.0, 1.0, "a number from 0 to 1")


def _number(text: str, low: float, high: float, expected: str) -> float:
    """A number from `low` to `high`. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # within no bounds
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return value


def positive_int(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


def non_negative_int(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)
