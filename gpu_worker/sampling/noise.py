"""Counter-based sampling noise: a hash of (seed, choice, output offset, token id), the same wherever it is computed.

All integers are 32 bits wide and wrap; ``>>`` is a logical shift; products keep their low 32 bits:

    mix(x):  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16
    key0  =  mix(mix(mix(mix(seed_low  ^ 0x9E3779B9) ^ seed_high) ^ choice) ^ offset)
    key1  =  mix(mix(mix(mix(seed_high ^ 0x85EBCA6B) ^ seed_low) ^ offset) ^ choice)
    bits(token)   =  mix(mix(token ^ key0) ^ key1)
    uniform       =  min((float32(bits >> 1) + 0.5) * 2**-31, 1 - 2**-24)          each step rounded to float32
    exponential   =  -log(1 - uniform), computed as log1p so that small values keep their precision
    gumbel        =  -log(exponential)

`mix` is the "lowbias32" finaliser of Chris Wellons' hash prospector. The row with the largest logit / temperature +
gumbel is a sample of the softmax (Gumbel-max). `bits` and `uniform` are exact on every device; the logarithms may
differ between devices in their last bits, as the logits do.
"""

import torch

_MASK_17 = (1 << 17) - 1
_MASK_16 = (1 << 16) - 1
_LARGEST_UNIFORM = 1.0 - 2.0**-24


def _signed(value: int) -> int:
    """The int32 with the same bits as an unsigned 32-bit constant: torch computes with signed ones."""
    return value - (1 << 32) if value >= 1 << 31 else value


_FACTOR_1 = _signed(0x7FEB352D)
_FACTOR_2 = _signed(0x846CA68B)
_SALT_0 = _signed(0x9E3779B9)
_SALT_1 = _signed(0x85EBCA6B)


def mix(x: torch.Tensor) -> torch.Tensor:
    """Hash of int32 values; `x` is not changed."""
    # torch shifts signed integers arithmetically: the mask makes the shift logical.
    x = x ^ ((x >> 16) & _MASK_16)
    x *= _FACTOR_1
    x ^= (x >> 15) & _MASK_17
    x *= _FACTOR_2
    x ^= (x >> 16) & _MASK_16
    return x


def row_keys(
    seed_low: torch.Tensor, seed_high: torch.Tensor, choices: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two int32 keys a row. All arguments are int32 [rows] that hold the bits of unsigned values."""
    key0 = mix(mix(mix(mix(seed_low ^ _SALT_0) ^ seed_high) ^ choices) ^ offsets)
    key1 = mix(mix(mix(mix(seed_high ^ _SALT_1) ^ seed_low) ^ offsets) ^ choices)
    return key0, key1


def gumbel(keys: tuple[torch.Tensor, torch.Tensor], token_ids: torch.Tensor) -> torch.Tensor:
    """float32 noise [rows, n] for int32 token ids, [n] (the same for every row) or [rows, n]."""
    bits = mix(mix(token_ids ^ keys[0][:, None]) ^ keys[1][:, None])
    uniform = _uniform(bits)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _uniform(bits: torch.Tensor) -> torch.Tensor:
    upper = (bits >> 1) & 0x7FFFFFFF
    return upper.float().add_(0.5).mul_(2.0**-31).clamp_(max=_LARGEST_UNIFORM)
