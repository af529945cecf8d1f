"""Paged attention on native kernels: a second `AttentionBackend` beside `TorchAttention`.

The bits of a token's result depend on its own position, keys and values only (src/attention.cpp has the technique).
"""

import ctypes

import numpy as np
import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError, address, dtype_code
from gpu_worker.kernels.cpu.library import AttentionShape, Library
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.attention import AttentionLayout

BLOCK_SIZE_MULTIPLE = 16


class CpuAttention:
    """An `AttentionBackend` for bfloat16 and float32 pages on the CPU."""

    name = "cpu"

    def __init__(self, library: Library, team: ThreadTeam) -> None:
        self._library = library
        self._team = team

    def prepare(self, layout: AttentionLayout) -> "CpuAttentionStep":
        """Lists where each row's queries begin and how long it is. Raises KernelArgumentError."""
        return CpuAttentionStep(self._library, self._team, layout)


class CpuAttentionStep:
    """Attention of one step."""

    def __init__(self, library: Library, team: ThreadTeam, layout: AttentionLayout) -> None:
        self._library = library
        self._team = team
        self._tables = layout.block_tables
        self._query_starts, self._kv_lens = row_bounds(layout)
        num_rows = len(self._kv_lens)
        self._tables_address = address(self._tables, "block_tables", (num_rows, None), torch.int32, row_stride=True)

    def attend(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None) -> torch.Tensor:
        """As `PreparedAttention.attend`; block_size a multiple of 16. Raises KernelArgumentError, MemoryError."""
        num_tokens, num_heads, head_dim = q.shape
        _, num_kv_heads, block_size, _ = k_pages.shape
        self._check(num_tokens, num_heads, num_kv_heads, head_dim, block_size)
        out = torch.empty((num_tokens, num_heads * head_dim), dtype=q.dtype)
        failed = self._library.attention(
            self._team.pool,
            dtype_code(q, "q"),
            ctypes.byref(
                AttentionShape(num_heads, num_kv_heads, head_dim, block_size, head_dim**-0.5, window if window else 0)
            ),
            address(q, "q", (num_tokens, num_heads, head_dim), q.dtype, row_stride=True),
            q.stride(0),
            address(k_pages, "k_pages", (None, num_kv_heads, block_size, head_dim), q.dtype),
            address(v_pages, "v_pages", k_pages.shape, q.dtype),
            self._tables_address,
            self._tables.stride(0),
            self._query_starts.ctypes.data,
            self._kv_lens.ctypes.data,
            len(self._kv_lens),
            out.data_ptr(),
            num_heads * head_dim,
        )
        if failed:
            raise MemoryError("attention found no memory for its scratch space")
        return out

    def _check(self, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
        if num_heads % num_kv_heads or head_dim % 2:
            raise KernelArgumentError(f"{num_heads} heads over {num_kv_heads} KV heads of size {head_dim}")
        if block_size % BLOCK_SIZE_MULTIPLE:
            raise KernelArgumentError(f"block_size {block_size} is no multiple of {BLOCK_SIZE_MULTIPLE}")
        if num_tokens != self._query_starts[-1]:
            raise KernelArgumentError(f"q holds {num_tokens} tokens, the layout {self._query_starts[-1]}")
        width = self._tables.shape[1]
        if len(self._kv_lens) and int(self._kv_lens.max()) > width * block_size:
            raise KernelArgumentError(f"block tables of {width} entries end before a row of {self._kv_lens.max()}")


def row_bounds(layout: AttentionLayout) -> tuple[np.ndarray, np.ndarray]:
    """First token of each row, and the number of tokens at the end ([num_rows + 1]); each row's length. int32.

    Raises KernelArgumentError when chunks do not follow one another.
    """
    num_decodes = layout.num_decodes
    num_rows = num_decodes + len(layout.chunks)
    starts = np.arange(num_rows + 1, dtype=np.int32)
    lens = np.empty(num_rows, dtype=np.int32)
    lens[:num_decodes] = layout.decode_kv_lens
    end = num_decodes
    for row, chunk in enumerate(layout.chunks, start=num_decodes):
        if chunk.start != end or not 1 <= chunk.num_tokens <= chunk.kv_len:
            raise KernelArgumentError(
                f"chunk of {chunk.num_tokens} tokens at {chunk.start} in a row of {chunk.kv_len}; wanted at {end}"
            )
        end += chunk.num_tokens
        starts[row + 1] = end
        lens[row] = chunk.kv_len
    return starts, lens
