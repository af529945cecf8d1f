"""CPU threads of the model: how many, how they wait, and where they run. Chosen before torch is imported, since OpenMP
reads its environment once.

Imports no torch. A spinning OpenMP team that shares its cores with another busy process slows down tenfold and more,
and gateway, scheduler and worker often share a small machine: idle threads give up their core soon.
"""

import math
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

_PROCESSORS_FOR_OTHERS = 2
"""Gateway and scheduler, and whatever else the machine does."""
_SPIN_COUNT = "2000"
"""Rounds of libgomp's wait loop before it sleeps: some microseconds, which covers the gaps inside a layer."""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, or less under a cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(root / "sys/fs/cgroup")
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Threads of the native kernels."""

    num_threads: int
    """The caller's included."""
    spin_us: float
    """How long a thread without work spins before it sleeps."""
    cpus: tuple[int, ...]
    """Processor of each thread; empty: the system places them. The caller's is left to the system all the same, since
    what it starts later would inherit it."""


def plan_threads(num_threads: int | None, spin_us: float, is_pinned: bool | None, root: Path = Path("/")) -> ThreadPlan:
    """What settings say; else a thread a physical core, pinned where processors are left for everything else.

    Where two threads of a core are processors of their own, a second kernel thread there only takes from the first.
    """
    places = core_processors(root)
    chosen = num_threads or max(1, min(len(places), usable_cores(root)))
    if is_pinned is None:
        is_pinned = chosen + _PROCESSORS_FOR_OTHERS <= usable_cores(root)
    return ThreadPlan(chosen, spin_us, tuple(places[:chosen]) if is_pinned and chosen <= len(places) else ())


def core_processors(root: Path = Path("/")) -> list[int]:
    """One processor of each physical core among those that this process may use, rising."""
    found: dict[str, int] = {}
    for processor in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(usable_cores(root)):
        siblings = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        try:
            core = siblings.read_text().strip()
        except OSError:
            core = f"processor {processor}"
        found.setdefault(core, processor)
    return list(found.values())


def prepare_openmp(environ: MutableMapping[str, str], num_threads: int) -> None:
    """Sets what libgomp reads when it is loaded. What the operator set stays."""
    environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def _cpu_quota(base: Path) -> float | None:
    """Cores' worth of time that the cgroup allows, of either version; None without a limit."""
    try:
        quota, period = (base / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (base / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (base / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None
    return int(quota) / int(period)
