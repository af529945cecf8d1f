"""Weights in 8 bits: what is lost is stated, and small."""

import pytest
import torch

from gpu_worker.loading.int8 import quantise_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_is_within_half_a_step(dtype: torch.dtype) -> None:
    weight = (torch.randn(50, 300, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 2, 50)[:, None]).to(
        dtype
    )
    rows = quantise_rows(weight)
    held = rows.codes.float() * rows.scale[:, None]
    assert rows.codes.dtype == torch.int8
    assert rows.codes.abs().amax() == 127
    assert ((held - weight.float()).abs() <= rows.scale[:, None] * 0.5001).all()
    error = (held - weight.float()).norm() / weight.float().norm()
    assert float(rows.relative_error) == pytest.approx(float(error), rel=1e-3)
    assert 0 < error < 0.012


def test_rows_of_zeros_stay_zeros() -> None:
    rows = quantise_rows(torch.zeros(3, 8, dtype=torch.bfloat16))
    assert rows.scale.tolist() == [1, 1, 1]
    assert not rows.codes.any()
    assert float(rows.relative_error) == 0


def test_slices_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(7, 40)
    whole = quantise_rows(weight)
    monkeypatch.setattr("gpu_worker.loading.int8._SLICE_ELEMENTS", 90)
    cut = quantise_rows(weight)
    assert torch.equal(whole.codes, cut.codes)
    assert torch.equal(whole.scale, cut.scale)
    assert float(cut.relative_error) == pytest.approx(float(whole.relative_error), rel=1e-5)
