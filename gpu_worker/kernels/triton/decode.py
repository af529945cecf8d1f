"""Split-KV decode attention: one token a row, long rows divided among several programs."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.attention import paged_attention_reference
from gpu_worker.kernels.triton.attention_arguments import PagedKv, check_attention
from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.decode import paged_decode_kernel, reduce_splits_kernel
from gpu_worker.kernels.triton.shapes import (
    SMALLEST_DOT,
    AttentionShape,
    DeviceClass,
    Tile,
    decode_tile,
    next_power_of_2,
)


@dataclass(frozen=True, slots=True)
class SplitWorkspace:
    """Room for the splits' partial results; one serves all layers of a step, since launches run in order."""

    splits: int
    """A power of two."""
    part: torch.Tensor
    """[num_rows, num_heads, splits, head_dim] float32; empty with one split."""
    lse: torch.Tensor
    """[num_rows, num_heads, splits] float32."""

    @classmethod
    def make(cls, num_rows: int, shape: AttentionShape, splits: int, device: torch.device) -> "SplitWorkspace":
        """Allocates it. Raises KernelArgumentError when `splits` is no power of two."""
        check_that(splits >= 1 and splits == next_power_of_2(splits), f"splits is {splits}, wanted a power of two")
        rows = num_rows if splits > 1 else 0
        part = torch.empty((rows, shape.num_heads, splits, shape.head_dim), dtype=torch.float32, device=device)
        lse = torch.empty((rows, shape.num_heads, splits), dtype=torch.float32, device=device)
        return cls(splits, part, lse)


def paged_decode(
    q: torch.Tensor,
    kv: PagedKv,
    workspace: SplitWorkspace,
    *,
    softmax_scale: float,
    window: int | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attention of one token a row, the last of its ``kv_lens`` positions.

    `q` [num_rows, num_heads, head_dim], bf16 or fp16. A row of length 0 gives zeros. `window` as in
    `paged_attention`. Writes and returns `out` (made when None). Raises KernelArgumentError.
    """
    out = torch.empty_like(q) if out is None else out
    shape = check_attention(q, kv, out, window)
    num_rows = q.shape[0]
    splits = workspace.splits
    check_that(kv.kv_lens.shape[0] == num_rows, f"kv_lens has {kv.kv_lens.shape[0]} rows, q has {num_rows}")
    if num_rows == 0:
        return out
    if splits > 1:
        check_that(workspace.part.shape[0] >= num_rows, f"workspace holds {workspace.part.shape[0]} of {num_rows} rows")
        sizes = (None, shape.num_heads, splits)
        check_tensor("workspace.part", workspace.part, (*sizes, shape.head_dim), (torch.float32,), q.device)
        check_tensor("workspace.lse", workspace.lse, sizes, (torch.float32,), q.device)
    tile = decode_tile(shape, DeviceClass.of(q.device)) if tile is None else tile
    paged_decode_kernel[(num_rows, shape.num_kv_heads, splits)](
        q,
        kv.k_pages,
        kv.v_pages,
        kv.block_tables,
        kv.kv_lens,
        kv.row_ids,
        workspace.part,
        workspace.lse,
        out,
        kv.k_scale,
        kv.v_scale,
        softmax_scale,
        window or 0,
        q.stride(0),
        out.stride(0),
        kv.block_tables.stride(0),
        NUM_KV_HEADS=shape.num_kv_heads,
        GROUP=shape.group,
        GROUP_PAD=max(SMALLEST_DOT, next_power_of_2(shape.group)),
        BLOCK_SIZE=shape.block_size,
        HEAD_DIM=shape.head_dim,
        DIM_PAD=shape.dim_pad,
        BLOCK_N=tile.block_n,
        SPLITS=splits,
        HAS_ROWS=kv.row_ids is not None,
        HAS_WINDOW=window is not None,
        SCALED=kv.k_scale is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if splits > 1:
        _reduce(workspace, kv, out, shape, tile, window)
    return out


def _reduce(
    workspace: SplitWorkspace, kv: PagedKv, out: torch.Tensor, shape: AttentionShape, tile: Tile, window: int | None
) -> None:
    reduce_splits_kernel[(out.shape[0], shape.num_heads)](
        workspace.part,
        workspace.lse,
        kv.kv_lens,
        out,
        window or 0,
        out.stride(0),
        NUM_HEADS=shape.num_heads,
        HEAD_DIM=shape.head_dim,
        DIM_PAD=shape.dim_pad,
        BLOCK_N=tile.block_n,
        SPLITS=workspace.splits,
        HAS_WINDOW=window is not None,
        num_warps=2,
    )


def paged_decode_reference(
    q: torch.Tensor, kv: PagedKv, *, softmax_scale: float, window: int | None = None
) -> torch.Tensor:
    """The same in plain torch, for rows of length 1 and more: float32 [num_rows, num_heads, head_dim]."""
    cu_q = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return paged_attention_reference(q, kv, cu_q, softmax_scale=softmax_scale, window=window)
