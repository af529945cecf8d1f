"""What attention over the paged cache is asked, whichever kernels answer.

A step's tokens lie flat: first one token for each decode row, then the tokens of each chunk, one chunk after another.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one row that computes several at once, or one that is not a decode."""

    start: int
    """Its first token among those of the step."""
    num_tokens: int
    kv_len: int
    """Length of the row with these tokens; they are its last."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Rows of a step: decode rows first, then chunks."""

    block_tables: torch.Tensor
    """[num_rows, width] int32 on the device; a row's first ``ceil(kv_len / block_size)`` entries count."""
    decode_kv_lens: npt.NDArray[np.int64]
    """[num_decodes] on the host: length of each decode row, the new token included."""
    chunks: tuple[Chunk, ...]

    @property
    def num_decodes(self) -> int:
        """Rows, and tokens, that decode."""
        return len(self.decode_kv_lens)


class PreparedAttention(Protocol):
    """Attention for one step; the same for each of its layers."""

    def attend(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None) -> torch.Tensor:
        """Causal attention of the step's queries over their rows' pages.

        `q` is [T, num_heads, head_dim], rotated; pages are [num_pages, num_kv_heads, block_size, head_dim] and hold
        this step's keys already. Positions that a row does not own may hold anything, NaN too, but the last page is
        finite. `window`: last positions that a token sees. Returns [T, num_heads * head_dim].
        """
        ...


class AttentionBackend(Protocol):
    """A set of attention kernels."""

    name: str

    def prepare(self, layout: AttentionLayout) -> PreparedAttention:
        """Does once a step what all its layers share."""
        ...
