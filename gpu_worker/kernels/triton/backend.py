"""The kernels behind the model's `Ops` and `AttentionBackend`."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.activation import silu_mul
from gpu_worker.kernels.triton.attention import paged_attention
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.checks import check_that
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode
from gpu_worker.kernels.triton.layout import DeviceAttentionLayout, on_device
from gpu_worker.kernels.triton.norm import add_rms_norm, rms_norm
from gpu_worker.kernels.triton.rope_kv_write import KvTarget, rope_kv_write
from gpu_worker.kernels.triton.shapes import AttentionShape, num_splits
from gpu_worker.model.attention import AttentionLayout
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots

_SPLIT_WORTH_LENGTH = 8192
"""A mixed step takes one unified launch unless a decode row is longer: alone in one program it would end last."""


class TritonOps:
    """The small operations of a step, each one launch. As `gpu_worker.model.ops.Ops`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.rms_norm`."""
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.add_rms_norm`."""
        return add_rms_norm(x, residual, weight, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        slots: TokenSlots,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        """As `Ops.rotate_and_store`; a token with a negative block is padding."""
        return rope_kv_write(qkv, heads, norms, slots, KvTarget(k_pages, v_pages))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `Ops.silu_mul`."""
        return silu_mul(gate_up)


class TritonAttention:
    """Attention over the paged cache. As `gpu_worker.model.attention.AttentionBackend`."""

    name = "triton"

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        self._shape = shape
        self._num_multiprocessors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        )

    def prepare(self, layout: AttentionLayout) -> "TritonAttentionStep":
        """As `AttentionBackend.prepare`: one small upload, none for a `DeviceAttentionLayout`."""
        resident = on_device(layout)
        check_that(resident.kv_lens is not None, "kv_lens is missing from the layout")
        splits = num_splits(
            resident.num_decodes, self._shape.num_kv_heads, resident.max_kv_len, self._num_multiprocessors
        )
        is_split = resident.num_decodes > 0 and (
            resident.num_chunk_rows == 0 or resident.max_kv_len > _SPLIT_WORTH_LENGTH
        )
        workspace = None
        if is_split:
            workspace = SplitWorkspace.make(resident.num_decodes, self._shape, splits, resident.block_tables.device)
        return TritonAttentionStep(resident, workspace, self._shape)


@dataclass(frozen=True, slots=True)
class TritonAttentionStep:
    """Attention of one step."""

    layout: DeviceAttentionLayout
    workspace: SplitWorkspace | None
    """Present where decode rows have a launch of their own."""
    shape: AttentionShape

    def attend(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, window: int | None) -> torch.Tensor:
        """As `PreparedAttention.attend`. Padding tokens past the last row get no defined value."""
        out = torch.empty_like(q)
        scale = self.shape.head_dim**-0.5
        num_split = 0
        if self.workspace is not None:
            num_split = self.layout.num_decodes
            kv = self.rows(k_pages, v_pages, 0, num_split)
            paged_decode(q[:num_split], kv, self.workspace, softmax_scale=scale, window=window, out=out[:num_split])
        self.attend_from(num_split, q, k_pages, v_pages, window, out)
        return out.view(q.shape[0], -1)

    def attend_from(
        self,
        first_row: int,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        """Fills `out` for the rows from `first_row` on, in one unified launch."""
        num_rows = self.layout.num_decodes + self.layout.num_chunk_rows
        if first_row < num_rows and self.layout.cu_q is not None:
            kv = self.rows(k_pages, v_pages, first_row, num_rows)
            scale = self.shape.head_dim**-0.5
            paged_attention(q, kv, self.layout.cu_q[first_row:], softmax_scale=scale, window=window, out=out)

    def rows(self, k_pages: torch.Tensor, v_pages: torch.Tensor, start: int, end: int) -> PagedKv:
        """Pages and tables of some of the step's rows."""
        layout = self.layout
        assert layout.kv_lens is not None
        row_ids = None if layout.row_ids is None else layout.row_ids[start:end]
        tables = layout.block_tables if row_ids is not None else layout.block_tables[start:end]
        return PagedKv(k_pages, v_pages, tables, layout.kv_lens[start:end], row_ids)
