"""Tensors of a GGUF file under transformers' names and row order, dequantised a slice at a time."""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from gpu_worker.loading.config import Architecture, ModelConfig
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.gguf_file import GgufFile, GgufTensor

_SUPPORTED = frozenset(
    {
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.F32,
    }
)
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROTARY_TENSOR = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")
# Carried by the configuration already.
_NOT_WEIGHTS = frozenset({"rope_freqs.weight"})
_SLICE_BYTES = 32 << 20


class GgufSource:
    """A `TensorSource` over one GGUF file."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.path = file.path
        self._tensors = {_canonical(name): tensor for name, tensor in file.tensors.items() if name not in _NOT_WEIGHTS}
        # llama.cpp stores rotary pairs side by side for arch llama: rows are put back into halves.
        self._rotary_head_dim = config.head_dim if config.architecture is Architecture.LLAMA else None

    def names(self) -> Collection[str]:
        """Names of every tensor; one unknown to this module keeps its GGUF name."""
        return self._tensors.keys()

    def file_of(self, name: str) -> Path:
        """The file, whatever the tensor."""
        return self.path

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in elements, output features first. Raises ModelLoadError for a type that cannot be read."""
        tensor = self._tensors[name]
        if tensor.kind not in _SUPPORTED:
            known = ", ".join(sorted(kind.name for kind in _SUPPORTED))
            raise ModelLoadError(
                self.path, f"unsupported quantisation {tensor.kind.name}; supported: {known}", tensor.name
            )
        return tensor.shape

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Dequantises slices of at most 32 MiB of float32 and copies each."""
        tensor = self._tensors[name]
        data = tensor.data
        num_rows = len(data)
        rows = target.view(num_rows, -1)
        order = self._row_order(tensor, target.shape[0])
        if target.dim() == 1 and order is not None:
            rows.copy_(_to_torch(dequantize(data, tensor.kind)[:, order]))
            return
        step = max(1, _SLICE_BYTES // (4 * rows.shape[1]))
        for start in range(0, num_rows, step):
            wanted = slice(start, start + step) if order is None else order[start : start + step]
            rows[start : start + step].copy_(_to_torch(dequantize(data[wanted], tensor.kind)))

    def _row_order(self, tensor: GgufTensor, num_rows: int) -> npt.NDArray[np.int64] | None:
        """For each row wanted the row stored; None where they are the same.

        A head's rows are wanted as [half, pair] and stored as [pair, half].
        """
        if self._rotary_head_dim is None or not _ROTARY_TENSOR.fullmatch(tensor.name):
            return None
        stored = np.arange(num_rows).reshape(-1, self._rotary_head_dim // 2, 2)
        return stored.swapaxes(1, 2).ravel()


def _canonical(name: str) -> str:
    if (found := _LAYER_TENSOR.fullmatch(name)) and found[2] in _LAYER_NAMES:
        return f"model.layers.{found[1]}.{_LAYER_NAMES[found[2]]}.{found[3]}"
    return _GLOBAL_NAMES.get(name, name)


def _to_torch(values: npt.NDArray[np.float32]) -> torch.Tensor:
    # A float32 tensor of the file is a read-only mapping, which torch warns about even where it is only read.
    return torch.from_numpy(values if values.flags.writeable else values.copy())
