"""Tensors of a GGUF file under transformers' names and row order, dequantised a slice at a time."""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType

from gpu_worker.loading.config import Architecture, ModelConfig
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.gguf_file import GgufFile, GgufTensor
from gpu_worker.loading.gguf_numbers import READABLE, copy_numbers
from gpu_worker.loading.tensor_source import BlockKind

_BLOCK_KINDS = {
    GGMLQuantizationType.Q8_0: BlockKind.Q8_0,
    GGMLQuantizationType.Q4_0: BlockKind.Q4_0,
    GGMLQuantizationType.Q4_1: BlockKind.Q4_1,
}
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
# What a core's cache holds: the steps between bytes and numbers go over it several times.
_SLICE_ELEMENTS = 1 << 17


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
        if tensor.kind not in READABLE:
            known = ", ".join(sorted(kind.name for kind in READABLE))
            raise ModelLoadError(
                self.path, f"unsupported quantisation {tensor.kind.name}; supported: {known}", tensor.name
            )
        return tensor.shape

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Turns slices of rows into numbers and copies each."""
        tensor = self._tensors[name]
        order = self._row_order(tensor, target.shape[0])
        num_rows = len(tensor.data)
        if target.dim() == 1 and order is not None:
            whole = torch.empty((1, len(target)))
            copy_numbers(_to_torch(tensor.data), tensor.kind, whole)
            target.copy_(whole[0, torch.from_numpy(order)])
            return
        rows = target.view(num_rows, -1)
        step = max(1, _SLICE_ELEMENTS // rows.shape[1])
        for start in range(0, num_rows, step):
            wanted = slice(start, start + step) if order is None else order[start : start + step]
            copy_numbers(_to_torch(tensor.data[wanted]), tensor.kind, rows[start : start + step])

    def block_kind(self, name: str) -> BlockKind | None:
        """The tensor's format, where it is one of blocks."""
        return _BLOCK_KINDS.get(self._tensors[name].kind)

    def blocks(self, name: str) -> torch.Tensor:
        """As `TensorSource.blocks`."""
        tensor = self._tensors[name]
        order = self._row_order(tensor, tensor.shape[0])
        return _to_torch(tensor.data if order is None else tensor.data[order])

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


def _to_torch(rows: npt.NDArray[np.uint8]) -> torch.Tensor:
    # The file's mapping is read-only, which torch warns about even where it is only read.
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
