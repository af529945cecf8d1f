"""The most that this machine does with a team of threads, measured: memory read, and products on registers alone."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.memory import WeightMemory
from gpu_worker.kernels.cpu.threads import ThreadTeam

_READ_BYTES = 256 << 20
"""More than the caches of the machines at hand give to one process; streamed weights are of this size."""
_REPEATS = 4
_ROUNDS = 1_000_000
_BFLOAT16, _FLOAT32, _INT8 = range(3)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best of a few repeats, with all threads of the team."""

    read_gb_s: float
    bfloat16_gflop_s: float
    float32_gflop_s: float
    int8_gop_s: float


def measure_ceilings(library: Library, team: ThreadTeam) -> Ceilings:
    """Takes about a second and 256 MiB."""
    return Ceilings(_read(library, team), *(_multiply(library, team, kind) for kind in (_BFLOAT16, _FLOAT32, _INT8)))


def _read(library: Library, team: ThreadTeam) -> float:
    memory = WeightMemory()
    start = memory.take(_READ_BYTES)
    ctypes.memset(start, 1, _READ_BYTES)
    best = min(_seconds(lambda: library.read_memory(team.pool, start, _READ_BYTES)) for _ in range(_REPEATS))
    return _READ_BYTES / best / 1e9


def _multiply(library: Library, team: ThreadTeam, kind: int) -> float:
    best = 0.0
    for _ in range(_REPEATS):
        started = time.perf_counter()
        operations = library.multiply_registers(team.pool, kind, _ROUNDS) * team.num_threads
        best = max(best, operations / (time.perf_counter() - started))
    return best / 1e9


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
