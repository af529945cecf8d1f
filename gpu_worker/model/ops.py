"""The small operations between matrix products: norms, rotary embedding with the KV write, SiLU.

`Ops` is what a backend implements; `TorchOps` is the readable reference that runs anywhere. Arithmetic is float32
inside each operation, rounded once to the model's dtype, as transformers does.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a packed row of query, key and value heads is divided."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm of each query and key head before the rotary embedding (Qwen3)."""

    q_weight: torch.Tensor
    """[head_dim]."""
    k_weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Where the tokens of a step stand: their rotary angles and their places in the KV cache. T tokens."""

    cos_sin: torch.Tensor
    """[T, head_dim] float32: cosines, then sines."""
    blocks: torch.Tensor
    """[T] int64 page of each token."""
    offsets: torch.Tensor
    """[T] int64 place in that page."""


class Ops(Protocol):
    """Operations of one device. T tokens, H hidden, I intermediate; pages as in `KvCache`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """[..., N] to the same shape: x / rms(x) * weight over the last dimension."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Adds x to `residual` in place, both [T, H], and returns the norm of the sum."""
        ...

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        slots: TokenSlots,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        """Takes [T, (num_heads + 2 num_kv_heads) head_dim], writes keys and values of the step into their pages.

        Returns the rotated queries, [T, num_heads, head_dim]. May overwrite `qkv`.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I] to [T, I]: silu of the first half times the second."""
        ...


class TorchOps:
    """Reference in plain torch, for any device and dtype."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.rms_norm`."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * (wide * scale).to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.add_rms_norm`."""
        residual += x
        return self.rms_norm(residual, weight, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        slots: TokenSlots,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        """As `Ops.rotate_and_store`."""
        packed = qkv.view(qkv.shape[0], -1, heads.head_dim)
        q, k, v = torch.split(packed, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
        if norms is not None:
            q = self.rms_norm(q, norms.q_weight, norms.eps)
            k = self.rms_norm(k, norms.k_weight, norms.eps)
        k_pages[slots.blocks, :, slots.offsets] = _rotate(k, slots.cos_sin)
        v_pages[slots.blocks, :, slots.offsets] = v
        return _rotate(q, slots.cos_sin)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `Ops.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotates each head of [T, heads, head_dim]: dimension i goes with i + head_dim / 2 (GPT-NeoX order)."""
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
