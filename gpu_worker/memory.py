"""How much memory there is for the KV cache: the machine's, a container's limit on it, or a GPU's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_UNLIMITED_V1 = 1 << 60


class DeviceMemoryError(RuntimeError):
    """A GPU's memory does not hold what this worker needs to start. The message has the figures."""


def available_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: what the kernel calls available, or less under a cgroup's limit.

    `root` is where /proc and /sys are found. On a system without /proc it is half of the physical memory.
    """
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    values = dict(_meminfo(meminfo))
    available = values.get("MemAvailable", values.get("MemFree", 0))
    return max(0, min([available, *_cgroup_rooms(root)]))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Of a GPU, in bytes."""

    total: int
    free: int
    reserved: int
    """What torch holds of it in this process."""

    @classmethod
    def of(cls, device: torch.device) -> "DeviceMemory":
        """Now."""
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, torch.cuda.memory_reserved(device))

    @property
    def held_elsewhere(self) -> int:
        """By other processes, and by the driver for this one."""
        return self.total - self.free - self.reserved

    def budget(self, utilization: float) -> int:
        """Bytes that this process may hold in all: its share of the device, less what is held elsewhere."""
        return int(self.total * utilization) - self.held_elsewhere

    def __str__(self) -> str:
        """Figures for a message."""
        return (
            f"the device has {self.total >> 20} MiB, {self.free >> 20} MiB of them free, {self.reserved >> 20} MiB "
            f"held by this worker and {self.held_elsewhere >> 20} MiB elsewhere"
        )


def check_weights_fit(memory: DeviceMemory, utilization: float, weight_bytes: int) -> None:
    """Raises DeviceMemoryError, before anything is read, where a device has no room for weights and any KV cache."""
    budget = memory.budget(utilization)
    if weight_bytes >= budget:
        raise DeviceMemoryError(
            f"the weights take {weight_bytes >> 20} MiB, and worker.gpu_memory_utilization={utilization} leaves "
            f"{max(0, budget) >> 20} MiB for weights and KV cache; {memory}"
        )


@contextmanager
def explained_shortage(stage: str, device: torch.device) -> Iterator[None]:
    """Raises DeviceMemoryError with the figures where what it encloses runs out of the device's memory."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise DeviceMemoryError(f"out of memory while {stage}; {DeviceMemory.of(device)}") from None


def _meminfo(path: Path) -> Iterator[tuple[str, int]]:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB":
            yield name, int(fields[0]) * 1024


def _cgroup_rooms(root: Path) -> Iterator[int]:
    """Room left under each limit on the way from this process's cgroup to the root, of either cgroup version."""
    membership = root / "proc/self/cgroup"
    if not membership.is_file():
        return
    for line in membership.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        relative = group.strip("/")
        if not controllers:
            yield from _rooms(root / "sys/fs/cgroup", relative, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(root / "sys/fs/cgroup/memory", relative, *names)


def _rooms(base: Path, relative: str, limit_file: str, usage_file: str, reclaimable: str) -> Iterator[int]:
    folder = base / relative
    # Inside a container the path is often that of the host: then only the base is there to be seen.
    if not folder.is_dir():
        folder = base
    while True:
        limit = _read_number(folder / limit_file)
        usage = _read_number(folder / usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED_V1:
            yield limit - usage + _stat_value(folder / "memory.stat", reclaimable)
        if folder == base:
            return
        folder = folder.parent


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat_value(path: Path, name: str) -> int:
    """Page cache that the kernel takes back before it fails an allocation."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
