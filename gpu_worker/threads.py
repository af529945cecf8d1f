"""CPU threads of the model: how many, and how they wait. Chosen before torch is imported, since OpenMP reads it once.

Imports no torch. A spinning OpenMP team that shares its cores with another busy process slows down tenfold and more,
and gateway, scheduler and worker often share a small machine: idle threads give up their core soon.
"""

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

_SPIN_COUNT = "2000"
"""Rounds of libgomp's wait loop before it sleeps: some microseconds, which covers the gaps inside a layer."""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, or less under a cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(root / "sys/fs/cgroup")
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


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
