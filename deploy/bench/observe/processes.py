"""Processes of this machine by Linux's /proc: who belongs to whom, their memory and CPU time. Elsewhere: not known."""

import os
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of some processes together."""

    bytes: int
    is_proportional: bool
    """Whether pages that several share count once (PSS); else they count in each (RSS)."""


def find_descendants(ancestor: int) -> tuple[int, ...]:
    """Ids of all processes that `ancestor` started, directly or not; none where /proc is not there."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        parent = _read_stat(int(folder.name), 1)
        if parent is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    border = [ancestor]
    while border:
        border = [child for parent in border for child in children.get(parent, ())]
        found += border
    return tuple(found)


def measure_memory(pids: tuple[int, ...]) -> Memory | None:
    """Resident memory of the processes that still live; None where it cannot be read."""
    proportional = [_read_kib(_PROC / str(pid) / "smaps_rollup", "Pss:") for pid in pids]
    if any(one is not None for one in proportional):
        return Memory(sum(one or 0 for one in proportional) * 1024, is_proportional=True)
    resident = [_read_kib(_PROC / str(pid) / "status", "VmRSS:") for pid in pids]
    if any(one is not None for one in resident):
        return Memory(sum(one or 0 for one in resident) * 1024, is_proportional=False)
    return None


def measure_cpu_s(pids: tuple[int, ...]) -> float | None:
    """CPU seconds that these processes have used in their lives; None where /proc is not there."""
    times = [(_read_stat(pid, 11), _read_stat(pid, 12)) for pid in pids]
    known = [user + system for user, system in times if user is not None and system is not None]
    return sum(known) / _TICKS_PER_S if known else None


def measure_machine_cpu_s() -> float | None:
    """CPU seconds that all processes of this machine have used since its start; None where /proc is not there."""
    try:
        fields = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _wait, interrupt, soft, _stolen = fields
    return (user + nice + system + interrupt + soft) / _TICKS_PER_S


def _read_stat(pid: int, position: int) -> int | None:
    """Field of /proc/PID/stat by its position after the state (which has position 0)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(text[text.rindex(")") + 2 :].split()[position])


def _read_kib(file: Path, name: str) -> int | None:
    try:
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except OSError:
        return None
    return None
