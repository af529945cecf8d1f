"""Host memory for the KV of sequences that gave way: whole blocks, of a bounded number. Whose they are is not known
here.

On a GPU it is pinned, and copies are enqueued behind the steps before them: nothing waits on the host.
"""

import numpy as np
import torch

from gpu_worker.batch.columns import Swaps
from gpu_worker.batch.limits import InvalidPlanError
from gpu_worker.kv_cache import KvCache, KvCacheSizeError, KvGeometry

_MOST_BYTES = 4 << 30
_MEMORY_SHARE = 0.1


class HostPool:
    """Blocks 0 … num_blocks - 1, each all layers of one cache block: ``[num_layers, 2, heads, block_size, head_dim]``.

    What it holds outlives a reset of the batch: a sequence may be out meanwhile.
    """

    def __init__(self, cache: KvCache, num_blocks: int) -> None:
        """Allocates for blocks of `cache`; 0 blocks are allowed. Raises KvCacheSizeError."""
        self.num_blocks = num_blocks
        self._cache = cache
        block = cache.block(cache.dummy_block)
        try:
            self._blocks = torch.empty((num_blocks, *block.shape), dtype=block.dtype, pin_memory=block.is_cuda)
        except RuntimeError:
            wanted = num_blocks * cache.geometry.block_bytes
            raise KvCacheSizeError(f"{wanted} bytes of host memory for swapped blocks cannot be allocated") from None
        self._is_filled = np.zeros(num_blocks, np.bool_)

    def check(self, swaps: Swaps) -> None:
        """Raises InvalidPlanError where a host block is to be read that was never written to."""
        is_known = self._is_filled[swaps.in_host_blocks] | np.isin(swaps.in_host_blocks, swaps.out_host_blocks)
        if not is_known.all():
            raise InvalidPlanError("a host block that holds nothing is swapped in")

    def swap_out(self, swaps: Swaps) -> None:
        """Copies blocks of the cache here."""
        for block, host_block in zip(swaps.out_blocks.tolist(), swaps.out_host_blocks.tolist(), strict=True):
            self._blocks[host_block].copy_(self._cache.block(block), non_blocking=True)
        self._is_filled[swaps.out_host_blocks] = True

    def swap_in(self, swaps: Swaps) -> None:
        """Copies host blocks into the cache. They keep what they hold."""
        for host_block, block in zip(swaps.in_host_blocks.tolist(), swaps.in_blocks.tolist(), strict=True):
            self._cache.block(block).copy_(self._blocks[host_block], non_blocking=True)


def choose_num_host_blocks(
    stated_bytes: int | None, device: str, preemption: str, available_bytes: int, geometry: KvGeometry
) -> int:
    """Blocks of a worker's pool: what its settings say, or a share of the host memory available.

    Without a word there is none on a CPU, whose cache is host memory already, unless preemption is by swap only.
    """
    if stated_bytes is None:
        is_of_use = device == "cuda" or preemption == "swap"
        stated_bytes = min(_MOST_BYTES, int(available_bytes * _MEMORY_SHARE)) if is_of_use else 0
    return stated_bytes // geometry.block_bytes
