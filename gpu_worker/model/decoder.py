"""The forward pass of a Llama-family decoder over a flat batch of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpu_worker.loading.config import ModelConfig
from gpu_worker.model.attention import AttentionBackend, AttentionLayout, PreparedAttention
from gpu_worker.model.ops import HeadNorms, HeadShape, Ops, TokenSlots
from gpu_worker.model.rope import cos_sin_table
from gpu_worker.model.weights import DecoderWeights, LayerWeights

LayerPages = tuple[torch.Tensor, torch.Tensor]
"""Key and value pages of one layer, each [num_pages, num_kv_heads, block_size, head_dim]."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of several rows, in the order that `AttentionLayout` describes."""

    token_ids: torch.Tensor
    """[T] int64 or int32."""
    positions: torch.Tensor
    """[T] int64, below the decoder's `max_model_len`."""
    blocks: torch.Tensor
    """[T] int64: page that each token's key and value go to."""
    offsets: torch.Tensor
    """[T] int64: place in that page."""
    attention: AttentionLayout


class Decoder:
    """Weights, operations and attention put together. Holds no state between steps; the cache is the caller's."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, ops: Ops, attention: AttentionBackend, max_model_len: int
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        self._attention = attention
        self._heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._cos_sin = cos_sin_table(config, max_model_len, weights.embedding.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and so everything else."""
        return self._weights.embedding.device

    def forward(self, step: StepInput, pages: Sequence[LayerPages]) -> torch.Tensor:
        """Hidden states [T, hidden_size] after the last layer, before the final norm. Writes the step's KV."""
        attention = self._attention.prepare(step.attention)
        slots = TokenSlots(self._cos_sin[step.positions], step.blocks, step.offsets)
        residual = functional.embedding(step.token_ids, self._weights.embedding)
        update = torch.zeros_like(residual)
        for index, (layer, layer_pages) in enumerate(zip(self._weights.layers, pages, strict=True)):
            update = self._layer(layer, self.config.window(index), update, residual, slots, attention, layer_pages)
        return residual + update

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden_size] rows of `forward` to float32 logits [S, vocab_size]."""
        normed = self._ops.rms_norm(hidden, self._weights.final_norm, self.config.norm_eps)
        return self._weights.lm_head(normed).float()

    def _layer(
        self,
        layer: LayerWeights,
        window: int | None,
        update: torch.Tensor,
        residual: torch.Tensor,
        slots: TokenSlots,
        attention: PreparedAttention,
        pages: LayerPages,
    ) -> torch.Tensor:
        """Adds `update` to `residual` in place and returns what the next layer has to add."""
        eps = self.config.norm_eps
        normed = self._ops.add_rms_norm(update, residual, layer.input_norm, eps)
        q = self._ops.rotate_and_store(layer.qkv(normed), self._heads, self._norms(layer), slots, *pages)
        attended = layer.output(attention.attend(q, *pages, window))
        normed = self._ops.add_rms_norm(attended, residual, layer.post_attention_norm, eps)
        return layer.down(self._ops.silu_mul(layer.gate_up(normed)))

    def _norms(self, layer: LayerWeights) -> HeadNorms | None:
        if layer.q_norm is None or layer.k_norm is None:
            return None
        return HeadNorms(layer.q_norm, layer.k_norm, self.config.norm_eps)
