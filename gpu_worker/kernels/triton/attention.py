"""Unified paged attention: prefill, chunks, decode rows and any mix of them in one launch."""

import torch

from gpu_worker.kernels.triton.attention_arguments import PagedKv, check_attention
from gpu_worker.kernels.triton.checks import check_tensor
from gpu_worker.kernels.triton.device.attention import paged_attention_kernel
from gpu_worker.kernels.triton.shapes import DeviceClass, Tile, prefill_tile


def paged_attention(
    q: torch.Tensor,
    kv: PagedKv,
    cu_q: torch.Tensor,
    *,
    softmax_scale: float,
    window: int | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Causal attention of each row's last tokens over its pages.

    `q` [T, num_heads, head_dim], bf16 or fp16; `cu_q` [num_rows + 1] int32 on the device: row i has tokens
    ``[cu_q[i], cu_q[i + 1])``, and they are the last of its ``kv_lens[i]`` positions. `window`: last positions that a
    token sees, its own included. Tokens from ``cu_q[-1]`` on are padding and keep what `out` held. Writes and returns
    `out` (made when None), shaped as q. Sums are float32. Raises KernelArgumentError.
    """
    out = torch.empty_like(q) if out is None else out
    shape = check_attention(q, kv, out, window)
    num_rows = kv.kv_lens.shape[0]
    check_tensor("cu_q", cu_q, (num_rows + 1,), (torch.int32,), q.device)
    if num_rows == 0 or q.shape[0] == 0:
        return out
    tile = prefill_tile(shape, DeviceClass.of(q.device)) if tile is None else tile
    num_tiles = q.shape[0] // (tile.block_m // shape.group) + num_rows
    paged_attention_kernel[(num_tiles, shape.num_kv_heads)](
        q,
        kv.k_pages,
        kv.v_pages,
        out,
        kv.block_tables,
        cu_q,
        kv.kv_lens,
        kv.row_ids,
        kv.k_scale,
        kv.v_scale,
        softmax_scale,
        num_rows,
        window or 0,
        q.stride(0),
        out.stride(0),
        kv.block_tables.stride(0),
        NUM_KV_HEADS=shape.num_kv_heads,
        GROUP=shape.group,
        BLOCK_SIZE=shape.block_size,
        HEAD_DIM=shape.head_dim,
        DIM_PAD=shape.dim_pad,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        HAS_ROWS=kv.row_ids is not None,
        HAS_WINDOW=window is not None,
        SCALED=kv.k_scale is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def paged_attention_reference(
    q: torch.Tensor, kv: PagedKv, cu_q: torch.Tensor, *, softmax_scale: float, window: int | None = None
) -> torch.Tensor:
    """The same in plain torch and float64, row by row; tokens outside every row give zeros. Float32 [T, heads, dim]."""
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    bounds = cu_q.tolist()
    table_rows = range(len(kv.kv_lens)) if kv.row_ids is None else kv.row_ids.tolist()
    for row, (table_row, kv_len) in enumerate(zip(table_rows, kv.kv_lens.tolist(), strict=True)):
        tokens = slice(bounds[row], bounds[row + 1])
        k = _row_positions(kv.k_pages, kv.k_scale, kv.block_tables[table_row], kv_len)
        v = _row_positions(kv.v_pages, kv.v_scale, kv.block_tables[table_row], kv_len)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("thd,nhd->htn", q[tokens].double(), k) * softmax_scale
        own = torch.arange(kv_len - (bounds[row + 1] - bounds[row]), kv_len, device=q.device)[:, None]
        position = torch.arange(kv_len, device=q.device)[None]
        is_hidden = position > own
        if window is not None:
            is_hidden |= position <= own - window
        weights = scores.masked_fill(is_hidden, float("-inf")).softmax(-1)
        out[tokens] = torch.einsum("htn,nhd->thd", weights, v).float()
    return out


def _row_positions(pages: torch.Tensor, scale: torch.Tensor | None, table: torch.Tensor, kv_len: int) -> torch.Tensor:
    """Keys or values of one row, float64 [kv_len, num_kv_heads, head_dim]."""
    num_pages = -(-kv_len // pages.shape[2])
    found = pages[table[:num_pages].long()].transpose(1, 2).flatten(0, 1)[:kv_len].double()
    return found if scale is None else found * scale[:, None].double()
