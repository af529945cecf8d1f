"""Builds `DecoderWeights` from a source: each tensor goes straight to its place in its final dtype and device."""

from collections.abc import Callable

import torch

from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.reader import ParameterReader, Progress
from gpu_worker.loading.tensor_names import EMBEDDING, FINAL_NORM, GATE_UP, LM_HEAD, QKV, layer_tensor
from gpu_worker.loading.tensor_source import TensorSource
from gpu_worker.model.linear import DenseLinear, Linear
from gpu_worker.model.weights import DecoderWeights, LayerWeights

MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""From the weight and bias of a layer's product to what computes it; the weight is let go where it is not kept."""


class Assembler:
    """Reads a checked source once. Beside the weights themselves it holds one slice of one tensor at a time."""

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        make_linear: MakeLinear = DenseLinear,
    ) -> None:
        """`make_linear` is for the products within layers; embedding and head stay in `dtype`."""
        self._config = config
        self._dtype = dtype
        self._make_linear = make_linear
        self._reader = ParameterReader(config, source, device, progress)

    def build(self) -> DecoderWeights:
        """All weights. Raises ModelLoadError."""
        embedding = self._parameter(EMBEDDING)
        layers = tuple(self._layer(layer) for layer in range(self._config.num_layers))
        final_norm = self._parameter(FINAL_NORM)
        head = embedding if self._config.tie_embeddings else self._parameter(LM_HEAD)
        return DecoderWeights(embedding, layers, final_norm, DenseLinear(head))

    def _layer(self, layer: int) -> LayerWeights:
        def parameter(name: str) -> torch.Tensor:
            return self._parameter(layer_tensor(layer, name))

        has_norm = self._config.qk_norm
        return LayerWeights(
            input_norm=parameter("input_layernorm.weight"),
            qkv=self._linear(layer, QKV, self._config.qkv_bias),
            q_norm=parameter("self_attn.q_norm.weight") if has_norm else None,
            k_norm=parameter("self_attn.k_norm.weight") if has_norm else None,
            output=self._linear(layer, ("self_attn.o_proj",), self._config.output_bias),
            post_attention_norm=parameter("post_attention_layernorm.weight"),
            gate_up=self._linear(layer, GATE_UP, self._config.mlp_bias),
            down=self._linear(layer, ("mlp.down_proj",), self._config.mlp_bias),
        )

    def _linear(self, layer: int, names: tuple[str, ...], has_bias: bool) -> Linear:
        weight = self._parameter(*(layer_tensor(layer, f"{name}.weight") for name in names))
        bias = self._parameter(*(layer_tensor(layer, f"{name}.bias") for name in names)) if has_bias else None
        return self._make_linear(weight, bias)

    def _parameter(self, *names: str) -> torch.Tensor:
        return self._reader.read(names, self._dtype)
