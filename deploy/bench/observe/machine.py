"""Where and with what a figure was measured, so that results of different machines are not taken for comparable.

Nothing in it names a person, a host or a path.
"""

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import chairlift
from deploy.bench.observe.processes import find_descendants, measure_cpu_s, measure_machine_cpu_s

MAX_FOREIGN_CORES = 0.08
"""Beyond this share of a core, other programs disturb a measurement on a small machine."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The client's machine."""

    system: str
    architecture: str
    cpu: str
    num_cores: int
    memory_gib: int | None
    python: str


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """What measured."""

    chairlift: str
    commit: str
    """Of the tree that it runs from, with ``+`` where files differ; empty where it was installed."""
    packages: dict[str, str]


class ForeignLoad:
    """CPU that processes other than this one and those it started use, from its making on."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._before = _foreign_cpu_s()

    def cores(self) -> float | None:
        """Mean number of cores they used; None where it cannot be told."""
        now, passed_s = _foreign_cpu_s(), time.monotonic() - self._started_s
        if now is None or self._before is None or passed_s <= 0:
            return None
        return max(0.0, (now - self._before) / passed_s)


def describe_machine() -> Machine:
    """This machine."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        python=platform.python_version(),
    )


def describe_software() -> Software:
    """This installation."""
    packages: dict[str, str] = {}
    for name in ("torch", "grpcio", "protobuf", "msgspec", "pyzmq", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return Software(chairlift=chairlift.__version__, commit=_commit(), packages=packages)


def _foreign_cpu_s() -> float | None:
    machine = measure_machine_cpu_s()
    own = measure_cpu_s((os.getpid(), *find_descendants(os.getpid())))
    return None if machine is None or own is None else machine - own


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def _memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))
    except (AttributeError, OSError, ValueError):
        return None


def _commit() -> str:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    try:
        found = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{found}+" if changed else found


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ("git", "-C", str(root), *arguments),  # noqa: S607 - git by the user's own PATH
        capture_output=True,
        text=True,
        check=True,
        timeout=10.0,
    )
    return done.stdout.strip()
