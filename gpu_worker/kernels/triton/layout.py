"""Rows of a step as the kernels read them: lengths and borders on the device, counts on the host."""

from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.model.attention import AttentionLayout


@dataclass(frozen=True, slots=True)
class DeviceAttentionLayout(AttentionLayout):
    """An `AttentionLayout` whose numbers already lie on the device, as a runner with resident state has them.

    `decode_kv_lens` and `chunks` of the base are not read: all rows of the step are described here, decode rows
    first. With `num_chunk_rows` 0 the host needs no length, so that a CUDA graph can hold the step.
    """

    num_decode_rows: int = 0
    num_chunk_rows: int = 0
    kv_lens: torch.Tensor | None = None
    """[num_rows] int32: length of each row with the step's tokens; 0 for a padding row."""
    cu_q: torch.Tensor | None = None
    """[num_rows + 1] int32: borders of the rows' tokens; None when every row decodes."""
    row_ids: torch.Tensor | None = None
    """[num_rows] int32: which of `block_tables` a row has; None: row i has table i."""
    max_kv_len: int = 0
    """Bound on every row's length, for the number of splits."""

    @property
    def num_decodes(self) -> int:
        """Rows, and tokens, that decode."""
        return self.num_decode_rows


def on_device(layout: AttentionLayout) -> DeviceAttentionLayout:
    """The layout itself when it is resident already, else one whose numbers are uploaded in a single copy."""
    if isinstance(layout, DeviceAttentionLayout):
        return layout
    num_decodes = layout.num_decodes
    chunk_lens = [chunk.kv_len for chunk in layout.chunks]
    kv_lens = np.concatenate((layout.decode_kv_lens, np.array(chunk_lens, np.int64)))
    counts = np.array([1] * num_decodes + [chunk.num_tokens for chunk in layout.chunks], np.int64)
    packed = np.concatenate((kv_lens, [0], counts.cumsum())).astype(np.int32)
    uploaded = torch.from_numpy(packed).to(layout.block_tables.device, non_blocking=True)
    return DeviceAttentionLayout(
        block_tables=layout.block_tables,
        decode_kv_lens=layout.decode_kv_lens,
        chunks=layout.chunks,
        num_decode_rows=num_decodes,
        num_chunk_rows=len(layout.chunks),
        kv_lens=uploaded[: len(kv_lens)],
        cu_q=uploaded[len(kv_lens) :],
        max_kv_len=int(kv_lens.max(initial=0)),
    )
