"""Huge pages really come where the system has them for the asking."""

import ctypes
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.runtime.lean_memory import give_back_freed
from gpu_worker.kernels.cpu.memory import WeightMemory
from gpu_worker.kv_cache import KvCache, KvGeometry

_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_BYTES = 32 << 20


@pytest.fixture(autouse=True)
def huge_pages() -> None:
    if not _SWITCH.exists() or "[never]" in _SWITCH.read_text() or not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("this system has no huge pages for the asking")


def huge_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


def fill_weights() -> Any:
    memory = WeightMemory()
    ctypes.memset(memory.take(_BYTES), 1, _BYTES)
    return memory


def fill_cache() -> Any:
    geometry = KvGeometry(num_layers=2, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32)
    cache = KvCache(geometry, _BYTES // geometry.block_bytes, torch.device("cpu"))
    cache.poison(torch.arange(cache.num_blocks))
    return cache


@pytest.mark.parametrize("fill", [fill_weights, fill_cache])
def test_most_of_it_is_in_huge_pages(fill: Any) -> None:
    # Memory that malloc kept from other tests has its pages already, and they stay what they are.
    give_back_freed()
    before = huge_kib()
    held = fill()
    assert huge_kib() - before > 0.6 * _BYTES / 1024
    del held
