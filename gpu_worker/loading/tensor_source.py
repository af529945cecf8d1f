"""The shape of a weight file to the assembler: named tensors that are read one at a time into memory given.

Names are those of transformers (``model.layers.0.self_attn.q_proj.weight``), rows are in its order (rotary halves,
not pairs), whatever the file's own conventions are.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch


class TensorSource(Protocol):
    """Weights on disk. Implemented by `SafetensorsSource` and `GgufSource`."""

    @property
    def path(self) -> Path:
        """File or folder to name where no single file is at fault."""
        ...

    def names(self) -> Collection[str]:
        """Names of every tensor that is there."""
        ...

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in elements, output features first."""
        ...

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Reads a tensor into `target` (same shape, any device), converting to its dtype. Raises ModelLoadError.

        Holds at most a slice of the tensor beside `target`.
        """
        ...
