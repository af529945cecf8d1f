"""Reads `ModelConfig` from the metadata of a GGUF file."""

import math

import numpy as np
from gguf import GGMLQuantizationType

from gpu_worker.loading.config import (
    MAX_LAYERS,
    Architecture,
    FrequencyFactors,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    find_fault,
    layer_windows,
    scaled_context_length,
)
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.gguf_file import GgufFile

# llama.cpp writes Mistral as llama.
_ARCHITECTURES = {"llama": Architecture.LLAMA, "qwen2": Architecture.QWEN2, "qwen3": Architecture.QWEN3}
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_ROPE_FACTORS = "rope_freqs.weight"


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration of the model in `file`. Raises ModelLoadError naming the metadata key."""
    name = file.text("general.architecture")
    if name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelLoadError(file.path, f"unknown architecture {name!r}; supported in GGUF: {known}")
    if file.integer(f"{name}.expert_count"):
        raise ModelLoadError(file.path, f"unsupported mixture of experts ({name}.expert_count)")
    hidden_size = file.required_integer(f"{name}.embedding_length")
    num_heads = file.required_integer(f"{name}.attention.head_count")
    num_layers = file.required_integer(f"{name}.block_count")
    scaling = _rope_scaling(file, name)
    context_length = scaled_context_length(file.required_integer(f"{name}.context_length"), scaling)
    config = ModelConfig(
        architecture=_ARCHITECTURES[name],
        vocab_size=_vocab_size(file, name),
        hidden_size=hidden_size,
        intermediate_size=file.required_integer(f"{name}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=file.integer(f"{name}.attention.head_count_kv") or num_heads,
        head_dim=_head_dim(file, name, hidden_size // max(num_heads, 1)),
        context_length=context_length,
        norm_eps=file.number(f"{name}.attention.layer_norm_rms_epsilon") or 1e-6,
        rope_theta=file.number(f"{name}.rope.freq_base") or 10_000.0,
        rope_scaling=scaling,
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=name == "qwen3",
        layer_windows=_layer_windows(file, name, num_layers, context_length),
        eos_token_ids=_end_ids(file),
    )
    if fault := find_fault(config):
        raise ModelLoadError(file.path, fault)
    return config


def _vocab_size(file: GgufFile, name: str) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(file.path, "missing", "token_embd.weight")
    return embedding.shape[0]


def _head_dim(file: GgufFile, name: str, default: int) -> int:
    head_dim = file.integer(f"{name}.attention.key_length") or default
    value_dim = file.integer(f"{name}.attention.value_length") or head_dim
    rotary_dim = file.integer(f"{name}.rope.dimension_count") or head_dim
    if value_dim != head_dim or rotary_dim != head_dim:
        raise ModelLoadError(
            file.path, f"unsupported head: keys of {head_dim}, values of {value_dim}, rotary part of {rotary_dim}"
        )
    return head_dim


def _rope_scaling(file: GgufFile, name: str) -> RopeScaling | None:
    if (factors := file.tensors.get(_ROPE_FACTORS)) is not None:
        if factors.kind is not GGMLQuantizationType.F32:
            raise ModelLoadError(file.path, f"is {factors.kind.name}, not F32", _ROPE_FACTORS)
        return FrequencyFactors(tuple(float(value) for value in factors.data.view(np.float32).ravel()))
    kind = file.text(f"{name}.rope.scaling.type") or "none"
    # Older files state the factor alone.
    factor = file.number(f"{name}.rope.scaling.factor") or file.number(f"{name}.rope.scale_linear")
    match kind:
        case "none" if factor is None or factor == 1.0:
            return None
        case "none" | "linear":
            return LinearScaling(factor or 1.0)
        case "yarn":
            original = file.required_integer(f"{name}.rope.scaling.original_context_length")
            extra = file.number(f"{name}.rope.scaling.attn_factor") or 1.0
            factor = factor or 1.0
            return YarnScaling(factor, original, extra * (0.1 * math.log(max(factor, 1.0)) + 1.0))
        case _:
            raise ModelLoadError(file.path, f"unsupported RoPE scaling {kind!r}; supported: none, linear, yarn")


def _layer_windows(file: GgufFile, name: str, num_layers: int, context_length: int) -> tuple[int | None, ...]:
    window = file.integer(f"{name}.attention.sliding_window")
    # More layers are refused.
    return layer_windows(window, [True] * min(num_layers, MAX_LAYERS), context_length) if window else ()


def _end_ids(file: GgufFile) -> tuple[int, ...]:
    ids = (file.integer(key) for key in _END_KEYS)
    return tuple(dict.fromkeys(token for token in ids if token is not None))
