# mypy: ignore-errors
# Device code: typed by Triton's compiler, not by Python.
"""Counter-based Gumbel noise: the hash of `gpu_worker.sampling.noise`, bit for bit, and its logarithms."""

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """The hash of 32-bit words (uint32: shifts are logical, products wrap)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def row_keys(seed_low, seed_high, choice, offset):
    """The two uint32 keys of a row; arguments are int32 that hold unsigned bits."""
    low = seed_low.to(tl.uint32, bitcast=True)
    high = seed_high.to(tl.uint32, bitcast=True)
    which = choice.to(tl.uint32, bitcast=True)
    place = offset.to(tl.uint32, bitcast=True)
    key0 = mix(mix(mix(mix(low ^ 0x9E3779B9) ^ high) ^ which) ^ place)
    key1 = mix(mix(mix(mix(high ^ 0x85EBCA6B) ^ low) ^ place) ^ which)
    return key0, key1


@triton.jit
def uniform(key0, key1, token):
    """float32 in (0, 1 - 2^-24] for int32 token ids: exact on every device."""
    bits = mix(mix(token.to(tl.uint32, bitcast=True) ^ key0) ^ key1)
    # Converted as a signed number, which hardware rounds to nearest: the top bit is clear.
    half = (bits >> 1).to(tl.int32, bitcast=True).to(tl.float32)
    return tl.minimum((half + 0.5) * 4.656612873077393e-10, 0.999999940395355224609375)


@triton.jit
def gumbel(key0, key1, token):
    """-log(-log1p(-uniform)). The device's log is off by parts of 2^-22 near 1: there a series takes its place."""
    u = uniform(key0, key1, token)
    # log1p(-u) = -2 atanh(u / (2 - u)); seven terms give float32's precision up to u = 1/2.
    z = u / (2.0 - u)
    z2 = z * z
    series = 1.0 / 13.0
    series = series * z2 + 1.0 / 11.0
    series = series * z2 + 1.0 / 9.0
    series = series * z2 + 1.0 / 7.0
    series = series * z2 + 1.0 / 5.0
    series = series * z2 + 1.0 / 3.0
    series = series * z2 + 1.0
    exponential = tl.where(u < 0.5, 2.0 * z * series, -tl.log(1.0 - u))
    return -tl.log(exponential)
