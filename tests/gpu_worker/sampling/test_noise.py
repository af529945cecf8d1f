"""The noise function is a contract: other kernels and later versions must give the same bits."""

import math

import pytest
import torch

from gpu_worker.sampling.noise import _uniform, gumbel, mix, row_keys

MASK = 0xFFFFFFFF


def mix_by_hand(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    return x ^ x >> 16


def keys_by_hand(seed: int, choice: int, offset: int) -> tuple[int, int]:
    low, high = seed & MASK, seed >> 32
    key0 = mix_by_hand(mix_by_hand(mix_by_hand(mix_by_hand(low ^ 0x9E3779B9) ^ high) ^ choice) ^ offset)
    key1 = mix_by_hand(mix_by_hand(mix_by_hand(mix_by_hand(high ^ 0x85EBCA6B) ^ low) ^ offset) ^ choice)
    return key0, key1


def int32(*values: int) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >= 1 << 31 else value for value in values], dtype=torch.int32)


def keys(seed: int, choice: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    return row_keys(int32(seed & MASK), int32(seed >> 32), int32(choice), int32(offset))


def test_mix_golden_values() -> None:
    values = int32(0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, MASK)
    found = [value & MASK for value in mix(values).tolist()]
    assert found == [0x0, 0x688990C0, 0xD1132181, 0x8D29FFB8, 0xCC4B4124, 0xE628C683, 0x6768824A]


@pytest.mark.parametrize(
    ("seed", "choice", "offset", "wanted"),
    [
        (0, 0, 0, (0x41F39E5E, 0xB8BE96F9)),
        (42, 0, 0, (0x087565AE, 0x58266B8C)),
        (42, 3, 1000, (0xF5427EAA, 0x35D61DDF)),
        (0xFFFFFFFFFFFFFFFF, 255, 131_071, (0x1ED24E54, 0x68FE7A9E)),
    ],
)
def test_key_golden_values(seed: int, choice: int, offset: int, wanted: tuple[int, int]) -> None:
    found = keys(seed, choice, offset)
    assert (int(found[0]) & MASK, int(found[1]) & MASK) == wanted == keys_by_hand(seed, choice, offset)


def test_gumbel_equals_its_definition() -> None:
    """Over many tokens and rows: bits exactly, the logarithms to float32's precision."""
    tokens = torch.arange(0, 130_000, 97, dtype=torch.int32)
    for seed, choice, offset in ((7, 0, 0), (7, 0, 1), (2**63 + 5, 2, 900)):
        found = gumbel(keys(seed, choice, offset), tokens)[0]
        key0, key1 = keys_by_hand(seed, choice, offset)
        for index in range(0, len(tokens), 13):
            bits = mix_by_hand(mix_by_hand(int(tokens[index]) ^ key0) ^ key1)
            uniform = min(((bits >> 1) + 0.5) * 2.0**-31, 1 - 2.0**-24)
            assert math.isclose(float(found[index]), -math.log(-math.log1p(-uniform)), rel_tol=1e-5, abs_tol=1e-5)


def test_extreme_bits_stay_finite() -> None:
    for bits, largest in ((0, True), (MASK, False)):
        uniform = _uniform(int32(bits))
        assert 0 < float(uniform) < 1
        assert (float(uniform) < 1e-9) == largest


def test_noise_is_gumbel_distributed_and_rows_are_independent() -> None:
    """Kolmogorov-Smirnov against the Gumbel distribution, and correlations between neighbouring keys."""
    tokens = torch.arange(20_000, dtype=torch.int32)
    rows = [
        gumbel(keys(seed, choice, offset), tokens)[0]
        for seed, choice, offset in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (1 << 32, 0, 0))
    ]
    for row in rows:
        ranked = row.double().sort().values
        expected = torch.exp(-torch.exp(-ranked))
        steps = torch.arange(1, len(row) + 1) / len(row)
        assert (expected - steps).abs().max() < 1.63 / math.sqrt(len(row))
        assert abs(float(torch.corrcoef(torch.stack((row[:-1], row[1:])))[0, 1])) < 0.03
    correlations = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert correlations.abs().max() < 0.03
