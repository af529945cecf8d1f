"""Weights of a whole decoder in packed form. Each tensor is packed by itself, so that the dense one can be let go."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, WeightKind
from gpu_worker.model.linear import DenseLinear, Linear
from gpu_worker.model.weights import DecoderWeights, LayerWeights


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


def pack_decoder(kernels: LinearKernels, weights: DecoderWeights, kind: WeightKind | None = None) -> PackedWeights:
    """Packs dense weights as they are, or in 8 bits (`kind` INT8), the vocabulary's included.

    Raises TypeError for weights that are not dense, KernelArgumentError for shapes that the kernels do not take.
    """
    pack = _packer(kernels, kind)
    embedding = kernels.pack(weights.embedding, None, kind)
    layers = tuple(_pack_layer(pack, layer) for layer in weights.layers)
    head = weights.lm_head
    is_tied = isinstance(head, DenseLinear) and head.weight.data_ptr() == weights.embedding.data_ptr()
    return PackedWeights(embedding, layers, weights.final_norm.float(), embedding if is_tied else pack(head, False))


Pack = Callable[[Linear, bool], PackedLinear]


def _packer(kernels: LinearKernels, kind: WeightKind | None) -> Pack:
    def pack(linear: Linear, paired: bool) -> PackedLinear:
        if not isinstance(linear, DenseLinear):
            raise TypeError(f"{type(linear).__name__} cannot be packed")
        return kernels.pack(linear.weight, linear.bias, kind, paired)

    return pack


def _pack_layer(pack: Pack, layer: LayerWeights) -> PackedLayer:
    return PackedLayer(
        input_norm=layer.input_norm.float(),
        qkv=pack(layer.qkv, False),
        q_norm=None if layer.q_norm is None else layer.q_norm.float(),
        k_norm=None if layer.k_norm is None else layer.k_norm.float(),
        output=pack(layer.output, False),
        post_attention_norm=layer.post_attention_norm.float(),
        gate_up=pack(layer.gate_up, True),
        down=pack(layer.down, False),
    )
