"""The memory found: the machine's, and a container's limits of either cgroup version."""

from pathlib import Path

import pytest
import torch

from gpu_worker.kv_cache import KvCache, KvCacheSizeError, KvGeometry, num_blocks_within
from gpu_worker.memory import available_host_bytes

MIB = 1 << 20


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1000 kB\nMemAvailable:    8388608 kB\nHugePages_Total: 0\n"
}


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    root = lay(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert available_host_bytes(root) == 8192 * MIB


def test_cgroup_v2_limit_of_a_parent(tmp_path: Path) -> None:
    """The tightest of the limits on the path counts, and page cache does not fill it."""
    root = lay(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/pod/worker\n",
            "sys/fs/cgroup/pod/worker/memory.max": "max\n",
            "sys/fs/cgroup/pod/worker/memory.current": f"{300 * MIB}\n",
            "sys/fs/cgroup/pod/memory.max": f"{1000 * MIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{600 * MIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
        },
    )
    assert available_host_bytes(root) == 500 * MIB


def test_cgroup_v1_seen_from_inside_a_container(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/0123abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{512 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{112 * MIB}\n",
        },
    )
    assert available_host_bytes(root) == 400 * MIB
    lay(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert available_host_bytes(root) == 8192 * MIB


def test_this_machine_has_memory() -> None:
    assert available_host_bytes() > 64 * MIB


GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.bfloat16)


def test_blocks_by_budget() -> None:
    assert GEOMETRY.block_bytes == 2 * 3 * 2 * 8 * 4 * 2
    assert num_blocks_within(10 * GEOMETRY.block_bytes + 5, GEOMETRY) == 9
    with pytest.raises(KvCacheSizeError, match=f"takes {GEOMETRY.block_bytes} bytes"):
        num_blocks_within(2 * GEOMETRY.block_bytes - 1, GEOMETRY)


def test_block_copies_reach_every_layer_at_once() -> None:
    """A chain of copies in one call reads what was there before it."""
    cache = KvCache(GEOMETRY, 4, torch.device("cpu"))
    for keys, values in cache.pages:
        for block in range(4):
            keys[block], values[block] = block, block + 10
    cache.copy_blocks(torch.tensor([0, 1]), torch.tensor([1, 3]))
    for keys, values in cache.pages:
        assert keys[:4, 0, 0, 0].tolist() == [0, 0, 2, 1]
        assert values[:4, 1, 3, 7].tolist() == [10, 10, 12, 11]


def test_the_dummy_block_is_finite_whatever_is_poisoned() -> None:
    cache = KvCache(GEOMETRY, 4, torch.device("cpu"))
    cache.poison(torch.arange(4))
    for keys, values in cache.pages:
        assert keys[:4].isnan().all()
        assert values[:4].isnan().all()
        assert torch.isfinite(keys[cache.dummy_block]).all()
