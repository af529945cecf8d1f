"""What a Llama-family decoder is, whatever file described it. No file format and no tensor here."""

import enum
import math
from collections.abc import Sequence
from typing import assert_never

import msgspec

MAX_LAYERS = 1 << 12
_MAX_SIZE = 1 << 24
_MAX_RATIO = 1e9
"""No model comes near them, and what is computed from larger ones is neither held by memory nor finite."""


class Architecture(enum.StrEnum):
    """Decoders that differ only by the switches of `ModelConfig`. SmolLM and Llama 2 and 3 are all LLAMA."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


class LinearScaling(msgspec.Struct, frozen=True, tag="linear"):
    """Positions divided by `factor` (Chen et al., 2023)."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True, tag="llama3"):
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int


class YarnScaling(msgspec.Struct, frozen=True, tag="yarn"):
    """YaRN (Peng et al., 2023), with one fixed factor for every length."""

    factor: float
    original_context_length: int
    attention_factor: float
    """Multiplies cos and sin."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Round the bounds of the ramp to whole dimensions."""


class FrequencyFactors(msgspec.Struct, frozen=True, tag="factors"):
    """Each inverse frequency divided by its own factor: how GGUF stores Llama 3.1's scaling."""

    factors: tuple[float, ...]
    """``head_dim / 2`` of them."""


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyFactors


class ModelConfig(msgspec.Struct, frozen=True):
    """Shape and switches of one decoder. Two models with equal configurations need the same code and memory."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before RoPE (Qwen3)."""
    layer_windows: tuple[int | None, ...] = ()
    """A layer sees this many last positions, its own included; None or an empty tuple: all of them."""
    eos_token_ids: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None without one."""
        return self.layer_windows[layer] if self.layer_windows else None


def find_fault(config: ModelConfig) -> str | None:
    """Why no decoder can have this configuration; None when one can."""
    sizes = {
        "vocabulary": config.vocab_size,
        "hidden size": config.hidden_size,
        "intermediate size": config.intermediate_size,
        "number of layers": config.num_layers,
        "number of heads": config.num_heads,
        "number of KV heads": config.num_kv_heads,
        "head size": config.head_dim,
        "context length": config.context_length,
    }
    for name, value in sizes.items():
        most = MAX_LAYERS if name == "number of layers" else _MAX_SIZE
        if not 1 <= value <= most:
            return f"{name} is {value}, which is not within 1 and {most}"
    if config.num_heads % config.num_kv_heads:
        return f"{config.num_heads} query heads cannot share {config.num_kv_heads} KV heads evenly"
    if config.head_dim % 2:
        return f"head size {config.head_dim} is odd: rotary embedding needs pairs"
    if not 0 < config.norm_eps < 1:
        return f"norm epsilon {config.norm_eps} is not within 0 and 1"
    if not 1 < config.rope_theta < math.inf:
        return f"RoPE base {config.rope_theta} must be a number above 1"
    if any(not 0 <= token < config.vocab_size for token in config.eos_token_ids):
        return f"an end-of-sequence id of {config.eos_token_ids} is outside the vocabulary of {config.vocab_size}"
    if any(window is not None and window < 1 for window in config.layer_windows):
        return "a sliding window is below 1 token"
    return _find_rope_fault(config.rope_scaling, config.head_dim)


def scaled_context_length(stated: int, scaling: RopeScaling | None) -> int:
    """Context that the model is good for, where the stated length is that of the unscaled model."""
    match scaling:
        case LinearScaling(factor) | YarnScaling(factor) if not math.isfinite(factor):
            return stated  # `find_fault` refuses it
        case LinearScaling(factor):
            return int(stated * max(factor, 1.0))
        case YarnScaling(factor, original):
            return max(stated, int(original * factor))
        case Llama3Scaling() | FrequencyFactors() | None:
            return stated
        case _:
            assert_never(scaling)


def layer_windows(window: int, is_sliding: Sequence[bool], context_length: int) -> tuple[int | None, ...]:
    """`ModelConfig.layer_windows` where the layers marked slide; empty where no position ever leaves the window.

    `context_length` is the scaled one: a window as long as the unscaled context is one once that is extended.
    """
    if window >= context_length or not any(is_sliding):
        return ()
    return tuple(window if sliding else None for sliding in is_sliding)


def _find_rope_fault(scaling: RopeScaling | None, head_dim: int) -> str | None:
    match scaling:
        case LinearScaling(factor) if not _are_ratios(factor):
            return f"RoPE scaling factor {factor} must be above 0, and finite"
        case Llama3Scaling(factor, low, high, original):
            if not _are_ratios(factor, low, high) or high <= low or not 1 <= original <= _MAX_SIZE:
                return f"RoPE scaling llama3 with factor {factor}, low {low}, high {high}, original context {original}"
        case YarnScaling(factor, original, attention_factor, fast, slow):
            is_good = _are_ratios(factor, attention_factor, fast, slow) and fast >= slow
            if not is_good or not 1 <= original <= _MAX_SIZE:
                return (
                    f"RoPE scaling yarn with factor {factor}, original context {original}, attention factor "
                    f"{attention_factor}, beta {slow} to {fast}"
                )
        case FrequencyFactors(factors) if len(factors) != head_dim // 2 or not _are_ratios(*factors):
            return (
                f"{len(factors)} RoPE frequency factors do not fit head size {head_dim}, or are not above 0 and finite"
            )
        case _:
            return None
    return None


def _are_ratios(*values: float) -> bool:
    return all(1 / _MAX_RATIO <= value <= _MAX_RATIO for value in values)
