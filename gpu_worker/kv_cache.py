"""The paged KV cache: one allocation, pages by layer, block copies. Which block belongs to whom is not known here."""

from dataclasses import dataclass

import torch

from gpu_worker.host_memory import advise_huge_pages
from gpu_worker.loading.config import ModelConfig
from gpu_worker.model.decoder import LayerPages


class KvCacheSizeError(ValueError):
    """The memory at hand holds no usable cache. The message has the figures."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of one block through all layers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: ModelConfig, block_size: int, dtype: torch.dtype) -> "KvGeometry":
        """That of a model; the cache has the dtype of its weights."""
        return cls(config.num_layers, config.num_kv_heads, config.head_dim, block_size, dtype)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one position in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """One block in all layers."""
        return self.bytes_per_token * self.block_size


def num_blocks_within(budget_bytes: int, geometry: KvGeometry) -> int:
    """Blocks that fit beside the cache's own dummy block. Raises KvCacheSizeError when none does."""
    num_blocks = budget_bytes // geometry.block_bytes - 1
    if num_blocks < 1:
        raise KvCacheSizeError(
            f"{budget_bytes} bytes for the KV cache hold no block: one of {geometry.block_size} tokens takes "
            f"{geometry.block_bytes} bytes, and two are needed at least"
        )
    return num_blocks


class KvCache:
    """Pages of all layers, ``[num_layers, 2, num_blocks + 1, num_kv_heads, block_size, head_dim]`` in one piece.

    Blocks 0 … num_blocks - 1 are the scheduler's. The one after them is the worker's dummy: always finite, read and
    written by padding. Other content is whatever memory held, so that readers must mask what a row does not own.
    """

    def __init__(self, geometry: KvGeometry, num_blocks: int, device: torch.device) -> None:
        """Allocates. Raises KvCacheSizeError when the memory is not to be had."""
        self.geometry = geometry
        self.num_blocks = num_blocks
        shape = (geometry.num_layers, 2, num_blocks + 1, geometry.num_kv_heads, geometry.block_size, geometry.head_dim)
        try:
            self._pool = torch.empty(shape, dtype=geometry.dtype, device=device)
        except RuntimeError:
            wanted = (num_blocks + 1) * geometry.block_bytes
            raise KvCacheSizeError(f"{wanted} bytes for the KV cache cannot be allocated on {device}") from None
        self.pages: tuple[LayerPages, ...] = tuple((layer[0], layer[1]) for layer in self._pool)
        if device.type == "cpu":
            self._advise_huge_pages()
        self._pool[:, :, self.dummy_block].zero_()

    @property
    def dummy_block(self) -> int:
        """Id of the block that belongs to no one."""
        return self.num_blocks

    def block(self, block: int) -> torch.Tensor:
        """One block in all layers, ``[num_layers, 2, num_kv_heads, block_size, head_dim]``: a view, not contiguous."""
        return self._pool[:, :, block]

    def copy_blocks(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copies whole blocks ([n] int64 ids each) in every layer, as if all at once: copy-on-write."""
        self._pool[:, :, destinations] = self._pool[:, :, sources]

    def _advise_huge_pages(self) -> None:
        """For the scheduler's blocks only: the dummy, touched at once, would take a huge page of each tensor."""
        for layer in self.pages:
            for pages in layer:
                advise_huge_pages(pages.data_ptr(), pages[: self.num_blocks].nbytes)

    def poison(self, blocks: torch.Tensor) -> None:
        """Fills blocks ([n] int64 ids) with NaN, for tests: whoever reads what he does not own is found out."""
        self._pool[:, :, blocks] = float("nan")
