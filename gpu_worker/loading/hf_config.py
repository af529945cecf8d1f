"""Reads `ModelConfig` from a Hugging Face folder: config.json and generation_config.json.

Absent keys mean what transformers takes them to mean. Whatever would change the computation and is not known here is
refused, never ignored.
"""

import math
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from gpu_worker.loading.config import (
    MAX_LAYERS,
    Architecture,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    find_fault,
    layer_windows,
    scaled_context_length,
)
from gpu_worker.loading.errors import ModelLoadError

_MISTRAL_DEFAULT_WINDOW = 4096


class _RopeParameters(msgspec.Struct):
    """`rope_scaling` of older files, `rope_parameters` of transformers 5 (which holds the base too)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    partial_rotary_factor: float | None = None


class _ModelTypeFile(msgspec.Struct):
    """Read first: another architecture has other keys, and its name says more than the one that is missing."""

    model_type: str


class _ConfigFile(msgspec.Struct):
    """The keys of config.json that decide how a model of this family computes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _RopeParameters | None = None
    rope_parameters: _RopeParameters | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | UnsetType | None = UNSET
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: list[str] | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, object] | None = None


class _GenerationFile(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


_FileT = TypeVar("_FileT", bound=msgspec.Struct)


def read_hf_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`. Raises ModelLoadError naming the file and the key."""
    path = folder / "config.json"
    architecture = _architecture(path, _read(path, _ModelTypeFile).model_type)
    file = _read(path, _ConfigFile)
    _refuse_unsupported(path, file)
    scaling = _rope_scaling(path, file)
    context_length = scaled_context_length(file.max_position_embeddings, scaling)
    generation_path = folder / "generation_config.json"
    generation = _read(generation_path, _GenerationFile) if generation_path.is_file() else _GenerationFile()
    eos = generation.eos_token_id if generation.eos_token_id is not None else file.eos_token_id
    config = ModelConfig(
        architecture=architecture,
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=file.head_dim or file.hidden_size // max(file.num_attention_heads, 1),
        context_length=context_length,
        norm_eps=file.rms_norm_eps,
        rope_theta=_rope_theta(file),
        rope_scaling=scaling,
        tie_embeddings=file.tie_word_embeddings,
        qkv_bias=architecture is Architecture.QWEN2 or file.attention_bias,
        output_bias=architecture in (Architecture.LLAMA, Architecture.QWEN3) and file.attention_bias,
        mlp_bias=architecture is Architecture.LLAMA and file.mlp_bias,
        qk_norm=architecture is Architecture.QWEN3,
        layer_windows=_layer_windows(path, file, architecture, context_length),
        eos_token_ids=_as_ids(eos),
    )
    if fault := find_fault(config):
        raise ModelLoadError(path, fault)
    return config


def _read(path: Path, kind: type[_FileT]) -> _FileT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelLoadError(path, f"cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ModelLoadError(path, f"not a configuration that can be read: {error}") from None


def _architecture(path: Path, model_type: str) -> Architecture:
    try:
        return Architecture(model_type)
    except ValueError:
        known = ", ".join(Architecture)
        raise ModelLoadError(path, f"unknown architecture: model_type = {model_type!r}; supported: {known}") from None


def _refuse_unsupported(path: Path, file: _ConfigFile) -> None:
    if file.hidden_act not in ("silu", "swish"):
        raise ModelLoadError(path, f"unsupported activation hidden_act = {file.hidden_act!r}; supported: silu")
    if file.quantization_config is not None:
        raise ModelLoadError(
            path, "unsupported quantisation: quantization_config is set; a GGUF file or unquantised weights can be read"
        )
    for rope in (file.rope_parameters, file.rope_scaling):
        if rope is not None and rope.partial_rotary_factor not in (None, 1.0):
            raise ModelLoadError(path, f"unsupported partial_rotary_factor = {rope.partial_rotary_factor}")
    if file.partial_rotary_factor not in (None, 1.0):
        raise ModelLoadError(path, f"unsupported partial_rotary_factor = {file.partial_rotary_factor}")


def _rope_theta(file: _ConfigFile) -> float:
    inner = file.rope_parameters.rope_theta if file.rope_parameters is not None else None
    return inner or file.rope_theta or 10_000.0


def _rope_scaling(path: Path, file: _ConfigFile) -> RopeScaling | None:
    rope = file.rope_parameters or file.rope_scaling
    kind = (rope.rope_type or rope.type or "default") if rope is not None else "default"
    if rope is None or kind == "default":
        return None

    def need(name: str, value: float | int | None) -> float:
        if value is None:
            raise ModelLoadError(path, f"RoPE scaling {kind} lacks {name}")
        return value

    match kind:
        case "linear":
            return LinearScaling(need("factor", rope.factor))
        case "llama3":
            return Llama3Scaling(
                need("factor", rope.factor),
                need("low_freq_factor", rope.low_freq_factor),
                need("high_freq_factor", rope.high_freq_factor),
                int(need("original_max_position_embeddings", rope.original_max_position_embeddings)),
            )
        case "yarn":
            factor = need("factor", rope.factor)
            original = rope.original_max_position_embeddings or file.max_position_embeddings
            return YarnScaling(
                factor,
                original,
                rope.attention_factor or _yarn_attention_factor(factor, rope),
                rope.beta_fast or 32.0,
                rope.beta_slow or 1.0,
                rope.truncate is not False,
            )
        case _:
            raise ModelLoadError(path, f"unsupported RoPE scaling {kind!r}; supported: default, linear, llama3, yarn")


def _yarn_attention_factor(factor: float, rope: _RopeParameters) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def _layer_windows(
    path: Path, file: _ConfigFile, architecture: Architecture, context_length: int
) -> tuple[int | None, ...]:
    num_layers = min(file.num_hidden_layers, MAX_LAYERS)  # more are refused
    match architecture:
        case Architecture.LLAMA:
            return ()
        case Architecture.MISTRAL:
            window = _MISTRAL_DEFAULT_WINDOW if file.sliding_window is UNSET else file.sliding_window
            is_sliding = [True] * num_layers
        case Architecture.QWEN2 | Architecture.QWEN3:
            window = None if file.sliding_window is UNSET or not file.use_sliding_window else file.sliding_window
            first = num_layers if file.max_window_layers is None else file.max_window_layers
            is_sliding = [layer >= first for layer in range(num_layers)]
            if file.layer_types is not None:
                is_sliding = _sliding_layers(path, file.layer_types, file.num_hidden_layers)
    return layer_windows(window, is_sliding, context_length) if isinstance(window, int) else ()


def _sliding_layers(path: Path, layer_types: list[str], num_layers: int) -> list[bool]:
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown or len(layer_types) != num_layers:
        named = ", ".join(sorted(unknown)) or f"{len(layer_types)} of them for {num_layers} layers"
        raise ModelLoadError(path, f"unsupported layer_types: {named}")
    return [kind == "sliding_attention" for kind in layer_types]


def _as_ids(eos: int | list[int] | None) -> tuple[int, ...]:
    match eos:
        case None:
            return ()
        case int():
            return (eos,)
        case list():
            return tuple(dict.fromkeys(eos))
