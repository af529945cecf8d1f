"""How much memory there is for the KV cache: the machine's, a container's limit on it, or a GPU's."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_UNLIMITED_V1 = 1 << 60


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


def cuda_kv_budget(device: torch.device, utilization: float, peak_bytes: int) -> int:
    """Bytes for the KV cache on a GPU, after weights were loaded and the largest step has run.

    `peak_bytes` is what torch had allocated at most during that step; what others hold on the device counts as well.
    """
    free, total = torch.cuda.mem_get_info(device)
    held_now = torch.cuda.memory_allocated(device)
    return int(total * utilization) - (total - free) - (peak_bytes - held_now)


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
