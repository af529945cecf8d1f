"""Reads parameters from a source: one tensor, or several stacked, straight to their final dtype and device."""

from collections.abc import Callable

import torch

from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.tensor_names import expected_tensors
from gpu_worker.loading.tensor_source import StoredBlocks, TensorSource

Progress = Callable[[int, int], None]
"""Called with (tensors read, tensors in all)."""


def no_progress(done: int, total: int) -> None:
    """A `Progress` that nobody watches."""


class ParameterReader:
    """Reads a checked source once. Beside what it returns it holds one slice of one tensor at a time."""

    def __init__(self, config: ModelConfig, source: TensorSource, device: torch.device, progress: Progress) -> None:
        self._source = source
        self._device = device
        self._progress = progress
        self._shapes = expected_tensors(config)
        self._num_read = 0

    def read(self, names: tuple[str, ...], dtype: torch.dtype) -> torch.Tensor:
        """The tensors stacked along their rows, in memory of their own. Raises ModelLoadError."""
        shapes = [self._shapes[name] for name in names]
        num_rows = [shape[0] for shape in shapes]
        stacked = torch.empty((sum(num_rows), *shapes[0][1:]), dtype=dtype, device=self._device)
        for name, part in zip(names, torch.split(stacked, num_rows), strict=True):
            self._source.copy_into(name, part)
            self._count()
        return stacked

    def read_blocks(self, names: tuple[str, ...]) -> StoredBlocks | None:
        """The tensors stacked as their file has them quantised; None where it has numbers, or kinds that differ."""
        kinds = {self._source.block_kind(name) for name in names}
        kind = kinds.pop()
        if kinds or kind is None:
            return None
        parts = [self._source.blocks(name) for name in names]
        for _ in names:
            self._count()
        return StoredBlocks(kind, torch.cat(parts) if len(parts) > 1 else parts[0])

    def _count(self) -> None:
        self._num_read += 1
        self._progress(self._num_read, len(self._shapes))
