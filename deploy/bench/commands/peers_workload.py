"""A stack of its own, the workload that other servers were measured with, and its figures."""

import argparse
import asyncio
import sys

import msgspec

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.observe.machine import MAX_FOREIGN_CORES
from deploy.bench.output.table import format_table
from deploy.bench.peers_workload import PeersResult, run_peers_workload
from deploy.bench.workload.peers import PeersShape

_DIGITS = {"ttft_mean_s": 3, "output_tok_s": 1, "decode_tok_s": 1, "prefill_tok_s": 1}


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. Raises SettingsError, StackError, PeersRunError, TargetError."""
    shape: PeersShape = "single" if arguments.single else "prefill" if arguments.prefill else "mixed"
    result = asyncio.run(run_peers_workload(_read_settings(arguments), shape, arguments.repetitions))
    if result.foreign_cores is not None and result.foreign_cores > MAX_FOREIGN_CORES:
        used = f"other programs used {result.foreign_cores:.2f} cores meanwhile"
        print(f"warning: {used}; repeat when the machine is quiet", file=sys.stderr)
    figures = _to_figures(result, with_memory=shape == "mixed")
    print(msgspec.json.encode(figures).decode() if arguments.json else _format(result, figures))
    return ExitCode.OK


def _read_settings(arguments: argparse.Namespace) -> Settings:
    ours = [
        f"model.dtype={arguments.dtype}",
        f"scheduler.max_num_seqs={arguments.concurrency}",
        "scheduler.enable_prefix_caching=false",
    ]
    if arguments.quantization is not None:
        ours.append(f"model.quantization={arguments.quantization}")
    return load_settings(arguments.config, [*ours, *arguments.overrides])


def _to_figures(result: PeersResult, *, with_memory: bool) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        name: round(spread.median, _DIGITS.get(name, 2)) for name, spread in result.figures.items()
    }
    if with_memory:
        figures["rss_mb"] = None if result.memory is None else round(result.memory.bytes / (1 << 20), 1)
    return figures


def _format(result: PeersResult, figures: dict[str, float | None]) -> str:
    rows = [
        (name, f"{spread.median:.2f}", f"{spread.low:.2f} … {spread.high:.2f}")
        for name, spread in result.figures.items()
    ]
    if result.memory is not None and figures.get("rss_mb") is not None:
        rows.append(("rss_mb", f"{figures['rss_mb']}", "PSS" if result.memory.is_proportional else "RSS"))
    return format_table(rows, ("", "median", f"of {result.repetitions}"))
