"""Rotary position embedding: inverse frequencies under each scaling, and the table of cosines and sines.

Formulas and their order of operations are transformers', in float32, so that angles agree to the last bit.
"""

import math
from typing import assert_never

import torch

from gpu_worker.loading.config import FrequencyFactors, LinearScaling, Llama3Scaling, ModelConfig, YarnScaling


def cos_sin_table(config: ModelConfig, num_positions: int, device: torch.device) -> torch.Tensor:
    """[num_positions, head_dim] float32: cosines of the head_dim / 2 angles, then their sines."""
    frequencies = inverse_frequencies(config)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    if isinstance(config.rope_scaling, YarnScaling):
        table *= config.rope_scaling.attention_factor
    return table.to(device)


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """[head_dim / 2] float32, on the CPU."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    match config.rope_scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case YarnScaling() as scaling:
            return _yarn(config, scaling)
        case FrequencyFactors(factors):
            return plain / torch.tensor(factors, dtype=torch.float32)
        case _:
            assert_never(config.rope_scaling)


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    original = scaling.original_context_length
    wavelengths = 2 * math.pi / plain
    is_long = wavelengths > original / scaling.low_freq_factor
    is_short = wavelengths < original / scaling.high_freq_factor
    scaled = torch.where(is_long, plain / scaling.factor, plain)
    smooth = (original / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - smooth) * scaled / scaling.factor + smooth * scaled
    return torch.where(~is_short & ~is_long, between, scaled)


def _yarn(config: ModelConfig, scaling: YarnScaling) -> torch.Tensor:
    dim, base = config.head_dim, config.rope_theta

    def dimension_of(num_rotations: float) -> float:
        turns = scaling.original_context_length / (num_rotations * 2 * math.pi)
        return (dim * math.log(turns)) / (2 * math.log(base))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    wavelengths = base ** (torch.arange(0, dim, 2).to(torch.float32) / dim)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
