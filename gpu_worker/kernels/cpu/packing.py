"""The weights of a whole decoder in packed form, as `CpuDecoder` takes them."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.cpu.linear import PackedLinear


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One transformer block. Norms are float32 vectors."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: PackedLinear
    post_attention_norm: torch.Tensor
    gate_up: PackedLinear
    """Paired."""
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A whole decoder."""

    embedding: PackedLinear
    layers: tuple[PackedLayer, ...]
    final_norm: torch.Tensor
    head: PackedLinear
    """The embedding itself where they are tied."""
