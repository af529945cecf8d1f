"""What every attention kernel over the paged cache is given, checked in one place."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.shapes import FP8, QUERY_DTYPES, AttentionShape


@dataclass(frozen=True, slots=True)
class PagedKv:
    """Pages of one layer and who owns them."""

    k_pages: torch.Tensor
    """[num_pages, num_kv_heads, block_size, head_dim], contiguous; the queries' dtype, or fp8 (e4m3) with scales."""
    v_pages: torch.Tensor
    block_tables: torch.Tensor
    """[num_tables, width] int32; entries past ``ceil(kv_len / block_size)`` are never read."""
    kv_lens: torch.Tensor
    """[num_rows] int32, on the device: positions of each row, the step's own included."""
    row_ids: torch.Tensor | None = None
    """[num_rows] int32: the block table of each row; any number where its length is 0. None: row i has table i."""
    k_scale: torch.Tensor | None = None
    """[num_kv_heads] float32: an fp8 key times this is the key. None where pages have the queries' dtype."""
    v_scale: torch.Tensor | None = None


def shape_of(q: torch.Tensor, kv: PagedKv) -> AttentionShape:
    """Shape that queries [tokens, heads, head_dim] and pages have together. Raises KernelArgumentError."""
    check_that(q.dim() == 3, f"q has shape {list(q.shape)}, wanted [tokens, heads, head_dim]")
    check_that(kv.k_pages.dim() == 4, f"k_pages has shape {list(kv.k_pages.shape)}, wanted 4 dimensions")
    return AttentionShape(q.shape[1], kv.k_pages.shape[1], q.shape[2], kv.k_pages.shape[2])


def check_attention(q: torch.Tensor, kv: PagedKv, out: torch.Tensor, window: int | None) -> AttentionShape:
    """Raises KernelArgumentError where the kernels would read or write what they must not."""
    shape = shape_of(q, kv)
    num_rows = kv.kv_lens.shape[0] if kv.row_ids is not None else kv.block_tables.shape[0]
    pages = (kv.k_pages.shape[0], shape.num_kv_heads, shape.block_size, shape.head_dim)
    check_tensor("q", q, (None, shape.num_heads, shape.head_dim), QUERY_DTYPES, q.device, row_stride_only=True)
    check_tensor("out", out, q.shape, (q.dtype,), q.device, row_stride_only=True)
    check_tensor("k_pages", kv.k_pages, pages, (q.dtype, FP8), q.device)
    check_tensor("v_pages", kv.v_pages, pages, (kv.k_pages.dtype,), q.device)
    check_tensor("block_tables", kv.block_tables, (None, None), (torch.int32,), q.device, row_stride_only=True)
    check_tensor("kv_lens", kv.kv_lens, (num_rows,), (torch.int32,), q.device)
    if kv.row_ids is not None:
        check_tensor("row_ids", kv.row_ids, (num_rows,), (torch.int32,), q.device)
    check_that(window is None or window > 0, f"window is {window}, wanted 1 or more")
    for name, scale in (("k_scale", kv.k_scale), ("v_scale", kv.v_scale)):
        is_fp8 = kv.k_pages.dtype == FP8
        check_that((scale is not None) == is_fp8, f"{name}: fp8 pages need scales, others take none")
        if scale is not None:
            check_tensor(name, scale, (shape.num_kv_heads,), (torch.float32,), q.device)
    check_alignment(q, kv)
    return shape


def check_alignment(q: torch.Tensor, kv: PagedKv) -> None:
    """Vector loads of 16 bytes need it; torch's own allocations have it, views may not."""
    for name, tensor in (("q", q), ("k_pages", kv.k_pages), ("v_pages", kv.v_pages)):
        check_that(tensor.data_ptr() % 16 == 0, f"{name} does not start at a multiple of 16 bytes")
    check_that(q.stride(0) * q.element_size() % 16 == 0, f"q has {q.stride(0)} elements between tokens: not aligned")
