"""Norms, rotary embedding with the KV write, and SiLU on native kernels: a second `Ops` beside `TorchOps`.

Unlike the reference, an RMS norm rounds once, after the weight.
"""

import ctypes
import math

import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError, address, dtype_code
from gpu_worker.kernels.cpu.library import Library, RotaryCall
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots

MAX_HEAD_DIM = 512


class CpuOps:
    """An `Ops` for bfloat16 and float32 on the CPU. Raises KernelArgumentError for tensors that do not fit."""

    def __init__(self, library: Library, team: ThreadTeam) -> None:
        self._library = library
        self._team = team

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.rms_norm`."""
        return self._norm(x, None, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `Ops.add_rms_norm`."""
        return self._norm(x, residual, weight, eps)

    def _norm(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        width = x.shape[-1]
        self._library.rms_norm(
            self._team.pool,
            dtype_code(x, "x"),
            address(x, "x", x.shape, x.dtype),
            None if residual is None else address(residual, "residual", x.shape, x.dtype),
            address(weight, "weight", (width,), x.dtype),
            out.data_ptr(),
            math.prod(x.shape[:-1]),
            width,
            eps,
        )
        return out

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
        num_tokens, dim, dtype = qkv.shape[0], heads.head_dim, qkv.dtype
        if dim % 2 or dim > MAX_HEAD_DIM:
            raise KernelArgumentError(f"head size {dim}: even ones up to {MAX_HEAD_DIM} are possible")
        pages_shape = (None, heads.num_kv_heads, None, dim)
        call = RotaryCall(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=dim,
            block_size=k_pages.shape[2],
            norm_eps=norms.eps if norms else 0.0,
            cos_sin=address(slots.cos_sin, "cos_sin", (num_tokens, dim), torch.float32),
            positions=None,
            blocks=address(slots.blocks, "blocks", (num_tokens,), torch.int64),
            offsets=address(slots.offsets, "offsets", (num_tokens,), torch.int64),
            q_norm=address(norms.q_weight, "q_norm", (dim,), dtype) if norms else None,
            k_norm=address(norms.k_weight, "k_norm", (dim,), dtype) if norms else None,
            k_pages=address(k_pages, "k_pages", pages_shape, dtype),
            v_pages=address(v_pages, "v_pages", k_pages.shape, dtype),
        )
        width = (heads.num_heads + 2 * heads.num_kv_heads) * dim
        q = torch.empty((num_tokens, heads.num_heads, dim), dtype=dtype)
        self._library.rotate_and_store(
            self._team.pool,
            dtype_code(qkv, "qkv"),
            ctypes.byref(call),
            address(qkv, "qkv", (num_tokens, width), dtype),
            q.data_ptr(),
            num_tokens,
        )
        return q

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `Ops.silu_mul`."""
        num_tokens, width = gate_up.shape
        out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
        self._library.silu_mul(
            self._team.pool,
            dtype_code(gate_up, "gate_up"),
            address(gate_up, "gate_up", (num_tokens, 2 * (width // 2)), gate_up.dtype),
            out.data_ptr(),
            num_tokens,
            width // 2,
        )
        return out
