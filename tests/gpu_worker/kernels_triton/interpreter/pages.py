"""Paged caches whose every slot that no row owns is NaN, and whose tables name a poisoned page past each row's end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.attention_arguments import PagedKv

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Heads:
    """Query heads a KV head, KV heads and their size; tokens a page."""

    group: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16


def poisoned_kv(
    heads: Heads,
    kv_lens: Sequence[int],
    dtype: torch.dtype,
    *,
    is_fp8: bool = False,
    by_row_id: bool = False,
    seed: int = 0,
) -> PagedKv:
    """Pages in shuffled order. A missing mask shows as NaN in what reads them.

    `by_row_id`: tables lie in another order than the rows, and a row of length 0 has none.
    """
    generator = torch.Generator().manual_seed(seed)
    pages_of = [-(-kv_len // heads.block_size) for kv_len in kv_lens]
    num_pages = sum(pages_of) + 3
    order = torch.randperm(num_pages, generator=generator).tolist()
    poisoned = order.pop()
    tables = torch.full((len(kv_lens), max([*pages_of, 1]) + 1), poisoned, dtype=torch.int32)
    is_owned = torch.zeros(num_pages, heads.block_size, dtype=torch.bool)
    for row, kv_len in enumerate(kv_lens):
        for index in range(pages_of[row]):
            tables[row, index] = order.pop()
            is_owned[tables[row, index], : kv_len - index * heads.block_size] = True
    shape = (num_pages, heads.num_kv_heads, heads.block_size, heads.head_dim)
    scale = torch.rand(2, heads.num_kv_heads, generator=generator) + 0.25 if is_fp8 else None
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    for pages in (k, v):
        pages.masked_fill_(~is_owned[:, None, :, None], float("nan"))
    row_ids = None
    if by_row_id:
        places = torch.randperm(len(kv_lens), generator=generator)
        tables = tables[places.argsort()]
        row_ids = places.int().masked_fill_(torch.tensor(kv_lens) == 0, -1)
    page_dtype = FP8 if is_fp8 else dtype
    return PagedKv(
        k.to(page_dtype),
        v.to(page_dtype),
        tables,
        torch.tensor(kv_lens, dtype=torch.int32),
        row_ids,
        None if scale is None else scale[0],
        None if scale is None else scale[1],
    )


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted; NaN where either holds one."""
    difference = found.double() - wanted.double()
    return float(difference.norm() / wanted.double().norm().clamp_min(1e-30))
