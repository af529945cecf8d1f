"""Reference attention in torch: gathers each row's pages, then `scaled_dot_product_attention`.

Query heads of one KV head are folded into query rows, so that a decode batch is one call without repeated keys. Decode
rows are grouped by their own length, rounded up to few sizes: short rows do not pay for long ones, and the shapes that
a row is computed in do not depend on its neighbours.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from gpu_worker.model.attention import AttentionLayout, Chunk

_SMALLEST_GROUP_PAGES = 8


class TorchAttention:
    """An `AttentionBackend` for any device and dtype."""

    name = "reference"

    def __init__(self, num_kv_heads: int, block_size: int, num_pages: int) -> None:
        """`num_pages` counts the finite page at the end."""
        self._num_kv_heads = num_kv_heads
        self._block_size = block_size
        self._dummy_page = num_pages - 1

    def prepare(self, layout: AttentionLayout) -> "TorchAttentionStep":
        """Groups the decode rows and lists the pages that each group and chunk reads."""
        groups = [
            _DecodeGroup(rows, lens, pages, layout, self._num_kv_heads, self._block_size, self._dummy_page)
            for rows, lens, pages in self._group_by_length(layout)
        ]
        chunks = [
            _ChunkRow(chunk, layout.block_tables[layout.num_decodes + i], self._num_kv_heads, self._block_size)
            for i, chunk in enumerate(layout.chunks)
        ]
        return TorchAttentionStep(groups, chunks)

    def _group_by_length(
        self, layout: AttentionLayout
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]:
        lens = layout.decode_kv_lens
        if not len(lens):
            return []
        padded = _padded_pages(-(-lens // self._block_size))
        width = layout.block_tables.shape[1]
        found = []
        for num_pages in np.unique(padded):
            rows = np.flatnonzero(padded == num_pages)
            found.append((rows, lens[rows], min(int(num_pages), width)))
        return found


class TorchAttentionStep:
    """Attention of one step."""

    def __init__(self, groups: "list[_DecodeGroup]", chunks: "list[_ChunkRow]") -> None:
        self._groups = groups
        self._chunks = chunks

    def attend(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None) -> torch.Tensor:
        """As `PreparedAttention.attend`."""
        out = torch.empty_like(q)
        for group in self._groups:
            group.attend(q, k_pages, v_pages, window, out)
        for chunk in self._chunks:
            chunk.attend(q, k_pages, v_pages, window, out)
        return out.view(q.shape[0], -1)


class _DecodeGroup:
    """Decode rows that share a padded length. B rows, P pages, N = P * block_size positions."""

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        lens: npt.NDArray[np.int64],
        num_pages: int,
        layout: AttentionLayout,
        num_kv_heads: int,
        block_size: int,
        dummy_page: int,
    ) -> None:
        device = layout.block_tables.device
        self._block_size = block_size
        self._rows = torch.from_numpy(rows).to(device)
        self._lens = torch.from_numpy(lens).to(device)
        self._range = torch.arange(len(rows), device=device)
        self._last_page = (self._lens - 1) // block_size
        tables = layout.block_tables[self._rows, :num_pages].long()
        # Entries past a row's end may name pages that hold anything.
        is_past = torch.arange(num_pages, device=device) > self._last_page[:, None]
        tables = tables.masked_fill(is_past, dummy_page)
        self._page_heads = _page_heads(tables, num_kv_heads)
        self._shape = (len(rows), num_kv_heads, num_pages * block_size)
        self._positions = torch.arange(num_pages * block_size, device=device)
        tail = self._last_page[:, None] * block_size + torch.arange(block_size, device=device)
        self._is_tail_unowned = (tail >= self._lens[:, None])[:, None, :, None]
        self._masks: dict[int | None, torch.Tensor] = {}

    def attend(
        self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None, out: torch.Tensor
    ) -> None:
        num_rows, num_kv_heads, num_positions = self._shape
        folded = q[self._rows].view(num_rows, num_kv_heads, -1, q.shape[-1])
        k, v = (self._gather(pages).view(num_rows, num_kv_heads, num_positions, -1) for pages in (k_pages, v_pages))
        attended = functional.scaled_dot_product_attention(folded, k, v, attn_mask=self._mask(window))
        out[self._rows] = attended.reshape(num_rows, *out.shape[1:])

    def _gather(self, pages: torch.Tensor) -> torch.Tensor:
        """[B, num_kv_heads, P, block_size, head_dim], zero where the row owns nothing."""
        num_rows, num_kv_heads, _ = self._shape
        found = pages.view(-1, self._block_size * pages.shape[-1]).index_select(0, self._page_heads)
        found = found.view(num_rows, num_kv_heads, -1, self._block_size, pages.shape[-1])
        found[self._range, :, self._last_page] = found[self._range, :, self._last_page].masked_fill(
            self._is_tail_unowned, 0.0
        )
        return found

    def _mask(self, window: int | None) -> torch.Tensor:
        """[B, 1, 1, N], True where the row's token sees the position."""
        if window not in self._masks:
            mask = self._positions < self._lens[:, None]
            if window is not None:
                mask &= self._positions >= self._lens[:, None] - window
            self._masks[window] = mask[:, None, None]
        return self._masks[window]


class _ChunkRow:
    """One chunk: n tokens that end a row of N positions."""

    def __init__(self, chunk: Chunk, block_table: torch.Tensor, num_kv_heads: int, block_size: int) -> None:
        num_pages = -(-chunk.kv_len // block_size)
        self._chunk = chunk
        self._num_kv_heads = num_kv_heads
        self._device = block_table.device
        self._page_heads = _page_heads(block_table[None, :num_pages].long(), num_kv_heads)
        self._masks: dict[int | None, torch.Tensor | None] = {}

    def attend(
        self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None, out: torch.Tensor
    ) -> None:
        tokens = slice(self._chunk.start, self._chunk.start + self._chunk.num_tokens)
        k, v = self._gather(k_pages), self._gather(v_pages)
        mask = self._mask(window)
        attended = functional.scaled_dot_product_attention(
            q[tokens].transpose(0, 1)[None], k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        out[tokens] = attended[0].transpose(0, 1)

    def _gather(self, pages: torch.Tensor) -> torch.Tensor:
        """[1, num_kv_heads, N, head_dim]."""
        found = pages.view(-1, pages.shape[2] * pages.shape[3]).index_select(0, self._page_heads)
        return found.view(1, self._num_kv_heads, -1, pages.shape[-1])[:, :, : self._chunk.kv_len]

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """[n, N], True where a token sees a position; None where plain causality says it all."""
        if window is not None and window >= self._chunk.kv_len:
            window = None
        if window is None and self._chunk.num_tokens == self._chunk.kv_len:
            return None
        if window not in self._masks:
            kv_len = self._chunk.kv_len
            own = torch.arange(kv_len - self._chunk.num_tokens, kv_len, device=self._device)[:, None]
            seen = torch.arange(kv_len, device=self._device)
            mask = seen <= own
            if window is not None:
                mask &= seen > own - window
            self._masks[window] = mask
        return self._masks[window]


def _padded_pages(num_pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rounded up to 8, 12, 16, 24, 32, 48 … pages."""
    power = 1 << np.ceil(np.log2(np.maximum(num_pages, _SMALLEST_GROUP_PAGES))).astype(np.int64)
    padded: npt.NDArray[np.int64] = np.where(num_pages <= power * 3 // 4, power * 3 // 4, power)
    return np.maximum(padded, _SMALLEST_GROUP_PAGES)


def _page_heads(tables: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Rows of the pages seen as [num_pages * num_kv_heads, …], in the order [row, head, page of the row]."""
    heads = torch.arange(num_kv_heads, device=tables.device)
    return (tables[:, None] * num_kv_heads + heads[:, None]).flatten()
