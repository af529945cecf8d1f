"""The shape of a weight file to the assembler: named tensors that are read one at a time into memory given.

Names are those of transformers (``model.layers.0.self_attn.q_proj.weight``), rows are in its order (rotary halves,
not pairs), whatever the file's own conventions are.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch


class BlockKind(enum.Enum):
    """GGUF's formats of 32 weights with a scale of their own: what a block holds, in this order, little-endian."""

    Q8_0 = "float16 scale, 32 signed bytes"
    Q4_0 = "float16 scale, 16 bytes of codes; weight = (code - 8) * scale"
    Q4_1 = "float16 scale, float16 minimum, 16 bytes of codes; weight = code * scale + minimum"


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Quantised weights as their file has them."""

    kind: BlockKind
    rows: torch.Tensor
    """[output features, bytes of a row's blocks] uint8, on the CPU."""


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

    def block_kind(self, name: str) -> BlockKind | None:
        """The format of a tensor that is stored in blocks; None where it is stored as plain numbers."""
        ...

    def blocks(self, name: str) -> torch.Tensor:
        """Rows of such a tensor, [output features, bytes] uint8, in memory of their own."""
        ...
