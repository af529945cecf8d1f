"""The tensors of one decoder, as the forward pass wants them: query, key and value packed, gate and up packed."""

from dataclasses import dataclass

import torch

from gpu_worker.model.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block. H hidden, I intermediate, D head size; norms are vectors in the model's dtype."""

    input_norm: torch.Tensor
    """[H]."""
    qkv: Linear
    """H to (num_heads + 2 * num_kv_heads) * D: query heads, key heads, value heads."""
    q_norm: torch.Tensor | None
    """[D], None where the architecture has none."""
    k_norm: torch.Tensor | None
    output: Linear
    """num_heads * D to H."""
    post_attention_norm: torch.Tensor
    """[H]."""
    gate_up: Linear
    """H to 2 * I: gate, then up."""
    down: Linear
    """I to H."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder."""

    embedding: torch.Tensor
    """[vocab_size, H]."""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[H]."""
    lm_head: Linear
    """H to vocab_size; shares the embedding's memory where they are tied."""
