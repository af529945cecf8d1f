"""Each CPU kernel by itself: its time, what it moves or computes a second, and its share of what the machine can do.

`chairlift bench kernels --json`. Ceilings are measured just before. torch and the worker are imported when it runs, and
not for `--help`.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.bench.kernel_cases import Case
    from gpu_worker.kernels.cpu.ceilings import Ceilings

EXIT_NO_KERNELS = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured of a case."""

    kernel: str
    best_ms: float
    median_ms: float
    gb_s: float
    """Of the bytes that must move, at the best time."""
    gop_s: float
    share_of_memory: float
    """Of the machine's reading; above 1 where a cache holds part of what is read."""
    share_of_compute: float


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. Returns `EXIT_NO_KERNELS` where there are no native kernels."""
    from deploy.bench.kernel_cases import cases
    from gpu_worker.backends.errors import KernelsUnavailableError
    from gpu_worker.kernels.cpu.backend import open_cpu_kernels
    from gpu_worker.kernels.cpu.ceilings import measure_ceilings
    from gpu_worker.threads import core_processors

    threads = arguments.threads or len(core_processors())
    try:
        kernels = open_cpu_kernels(threads, arguments.instruction_set)
    except KernelsUnavailableError as error:
        print(f"bench kernels: {error}", file=sys.stderr)
        return EXIT_NO_KERNELS
    ceilings = measure_ceilings(kernels.library, kernels.team)
    head = {"instruction_set": kernels.instruction_set, "threads": threads, "ceilings": asdict(ceilings)}
    figures = [measure(case, ceilings, arguments.repeats) for case in cases(kernels, arguments.only)]
    if arguments.json:
        print(json.dumps(head | {"kernels": [asdict(figure) for figure in figures]}))
    else:
        _print_table(head, figures)
    return 0


def measure(case: "Case", ceilings: "Ceilings", repeats: int) -> Figure:
    """Runs a case once to warm up, then `repeats` times."""
    case.run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        case.run()
        times.append(time.perf_counter() - started)
    best = min(times)
    gb_s, gop_s = case.num_bytes / best / 1e9, case.operations / best / 1e9
    return Figure(
        kernel=case.name,
        best_ms=round(best * 1e3, 3),
        median_ms=round(statistics.median(times) * 1e3, 3),
        gb_s=round(gb_s, 2),
        gop_s=round(gop_s, 1),
        share_of_memory=round(gb_s / ceilings.read_gb_s, 3),
        share_of_compute=round(gop_s / getattr(ceilings, case.peak), 4),
    )


def _print_table(head: dict[str, object], figures: list[Figure]) -> None:
    print(f"{head['instruction_set']}, {head['threads']} threads; ceilings: {head['ceilings']}")
    print(f"{'kernel':34} {'best ms':>9} {'median':>9} {'GB/s':>7} {'Gop/s':>8} {'memory':>7} {'compute':>8}")
    for each in figures:
        print(
            f"{each.kernel:34} {each.best_ms:9.3f} {each.median_ms:9.3f} {each.gb_s:7.2f} {each.gop_s:8.1f} "
            f"{each.share_of_memory:7.0%} {each.share_of_compute:8.1%}"
        )
