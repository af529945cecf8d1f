"""RoPE on queries and keys, the optional norm of each head, and the write of keys and values to their pages."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.rope_kv_write import rope_kv_write_kernel
from gpu_worker.kernels.triton.shapes import FP8, QUERY_DTYPES, AttentionShape, next_power_of_2
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots, TorchOps

_SLOT_DTYPES = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True)
class KvTarget:
    """Pages of one layer to write to."""

    k_pages: torch.Tensor
    """[num_pages, num_kv_heads, block_size, head_dim]; the model's dtype, or fp8 (e4m3) with scales."""
    v_pages: torch.Tensor
    k_scale: torch.Tensor | None = None
    """[num_kv_heads] float32: what is stored is the key divided by it."""
    v_scale: torch.Tensor | None = None


def rope_kv_write(
    qkv: torch.Tensor, heads: HeadShape, norms: HeadNorms | None, slots: TokenSlots, target: KvTarget
) -> torch.Tensor:
    """Turns and stores the step's keys, stores its values, returns the turned queries [T, num_heads, head_dim].

    `qkv` [T, (num_heads + 2 num_kv_heads) head_dim], bf16 or fp16, kept as it is. A token with a negative block is
    padding and touches no page; blocks past the last page are the caller's error and not seen here (that would be a
    sync). Raises KernelArgumentError.
    """
    _check(qkv, heads, norms, slots, target)
    num_tokens = qkv.shape[0]
    q_out = torch.empty((num_tokens, heads.num_heads, heads.head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return q_out
    group = heads.num_heads // heads.num_kv_heads
    rope_kv_write_kernel[(num_tokens, heads.num_kv_heads)](
        qkv,
        slots.cos_sin,
        slots.blocks,
        slots.offsets,
        None if norms is None else norms.q_weight,
        None if norms is None else norms.k_weight,
        q_out,
        target.k_pages,
        target.v_pages,
        target.k_scale,
        target.v_scale,
        0.0 if norms is None else norms.eps,
        qkv.stride(0),
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        GROUP_PAD=next_power_of_2(group),
        HEAD_DIM=heads.head_dim,
        HALF_PAD=next_power_of_2(heads.head_dim // 2),
        BLOCK_SIZE=target.k_pages.shape[2],
        HAS_NORM=norms is not None,
        SCALED=target.k_scale is not None,
        num_warps=1 if group * heads.head_dim <= 256 else 4,
    )
    return q_out


def _check(qkv: torch.Tensor, heads: HeadShape, norms: HeadNorms | None, slots: TokenSlots, target: KvTarget) -> None:
    check_that(target.k_pages.dim() == 4, f"k_pages has shape {list(target.k_pages.shape)}, wanted 4 dimensions")
    shape = AttentionShape(heads.num_heads, heads.num_kv_heads, heads.head_dim, target.k_pages.shape[2])
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    num_tokens = qkv.shape[0]
    check_tensor("qkv", qkv, (num_tokens, width), QUERY_DTYPES, qkv.device, row_stride_only=True)
    check_tensor("cos_sin", slots.cos_sin, (num_tokens, heads.head_dim), (torch.float32,), qkv.device)
    check_tensor("blocks", slots.blocks, (num_tokens,), _SLOT_DTYPES, qkv.device)
    check_tensor("offsets", slots.offsets, (num_tokens,), _SLOT_DTYPES, qkv.device)
    pages = (target.k_pages.shape[0], shape.num_kv_heads, shape.block_size, shape.head_dim)
    check_tensor("k_pages", target.k_pages, pages, (qkv.dtype, FP8), qkv.device)
    check_tensor("v_pages", target.v_pages, pages, (target.k_pages.dtype,), qkv.device)
    if norms is not None:
        check_tensor("q_norm", norms.q_weight, (heads.head_dim,), (qkv.dtype,), qkv.device)
        check_tensor("k_norm", norms.k_weight, (heads.head_dim,), (qkv.dtype,), qkv.device)
    for name, scale in (("k_scale", target.k_scale), ("v_scale", target.v_scale)):
        is_fp8 = target.k_pages.dtype == FP8
        check_that((scale is not None) == is_fp8, f"{name}: fp8 pages need scales, others take none")
        if scale is not None:
            check_tensor(name, scale, (shape.num_kv_heads,), (torch.float32,), qkv.device)


def rope_kv_write_reference(
    qkv: torch.Tensor, heads: HeadShape, norms: HeadNorms | None, slots: TokenSlots, target: KvTarget
) -> torch.Tensor:
    """The same in plain torch, through the model's own reference; padding tokens must not be among them."""
    k_pages = torch.zeros(target.k_pages.shape, dtype=qkv.dtype, device=qkv.device)
    v_pages = torch.zeros_like(k_pages)
    q = TorchOps().rotate_and_store(qkv.clone(), heads, norms, slots, k_pages, v_pages)
    for pages, made, scale in (
        (target.k_pages, k_pages, target.k_scale),
        (target.v_pages, v_pages, target.v_scale),
    ):
        new = made[slots.blocks, :, slots.offsets]
        if scale is not None:
            new = (new.float() * (1.0 / scale[:, None])).clamp(-448.0, 448.0)
        pages[slots.blocks, :, slots.offsets] = new.to(pages.dtype)
    return q
