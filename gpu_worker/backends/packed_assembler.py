"""Builds `PackedWeights` from a model's files: each tensor is read, packed and let go before the next."""

import torch

from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, WeightKind
from gpu_worker.kernels.cpu.packing import PackedLayer, PackedWeights
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.loading.reader import ParameterReader, Progress
from gpu_worker.loading.tensor_names import EMBEDDING, FINAL_NORM, GATE_UP, LM_HEAD, QKV, layer_tensor
from gpu_worker.loading.tensor_source import BlockKind

_CPU = torch.device("cpu")
_BLOCK_KINDS = {
    BlockKind.Q8_0: WeightKind.Q8_0,
    BlockKind.Q4_0: WeightKind.Q4_0,
    BlockKind.Q4_1: WeightKind.Q4_1,
}


class PackedAssembler:
    """Reads a checked source once. Beside the packed weights it holds one dense tensor at a time."""

    def __init__(
        self, files: ModelFiles, dtype: torch.dtype, quantization: str, kernels: LinearKernels, progress: Progress
    ) -> None:
        """`quantization`: ``none``, ``int8``, or ``gguf``, which keeps the blocks of tensors that are stored in them.

        Layers that are computed as one and stored in different formats are kept in `dtype`.
        """
        self._config = files.config
        self._reader = ParameterReader(files.config, files.tensors, _CPU, progress)
        self._kernels = kernels
        self._dtype = dtype
        self._quantization = quantization

    def build(self) -> PackedWeights:
        """All weights. Raises ModelLoadError."""
        embedding = self._pack((EMBEDDING,))
        layers = tuple(self._layer(layer) for layer in range(self._config.num_layers))
        final_norm = self._vector(FINAL_NORM)
        head = embedding if self._config.tie_embeddings else self._pack((LM_HEAD,))
        return PackedWeights(embedding, layers, final_norm, head)

    def _layer(self, layer: int) -> PackedLayer:
        def vector(name: str) -> torch.Tensor:
            return self._vector(layer_tensor(layer, name))

        config = self._config
        return PackedLayer(
            input_norm=vector("input_layernorm.weight"),
            qkv=self._linear(layer, QKV, config.qkv_bias),
            q_norm=vector("self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=vector("self_attn.k_norm.weight") if config.qk_norm else None,
            output=self._linear(layer, ("self_attn.o_proj",), config.output_bias),
            post_attention_norm=vector("post_attention_layernorm.weight"),
            gate_up=self._linear(layer, GATE_UP, config.mlp_bias, paired=True),
            down=self._linear(layer, ("mlp.down_proj",), config.mlp_bias),
        )

    def _linear(self, layer: int, names: tuple[str, ...], has_bias: bool, *, paired: bool = False) -> PackedLinear:
        biases = tuple(layer_tensor(layer, f"{name}.bias") for name in names)
        bias = self._reader.read(biases, torch.float32) if has_bias else None
        return self._pack(tuple(layer_tensor(layer, f"{name}.weight") for name in names), bias, paired=paired)

    def _pack(self, names: tuple[str, ...], bias: torch.Tensor | None = None, *, paired: bool = False) -> PackedLinear:
        if self._quantization == "gguf" and (stored := self._reader.read_blocks(names)) is not None:
            return self._kernels.pack_blocks(stored.rows, _BLOCK_KINDS[stored.kind], bias, paired)
        if self._quantization == "int8":
            # Rounded once, from the file's own numbers.
            weight = self._reader.read(names, torch.float32)
            return self._kernels.pack(weight, bias, WeightKind.INT8, paired)
        return self._kernels.pack(self._reader.read(names, self._dtype), bias, None, paired)

    def _vector(self, name: str) -> torch.Tensor:
        return self._reader.read((name,), torch.float32)
