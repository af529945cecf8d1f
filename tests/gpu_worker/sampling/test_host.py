"""Sampling on the host gives the tokens of the torch path, and each row's whatever its neighbours are."""

from typing import Any

import numpy as np
import pytest
import torch

from chairlift.ipc.common import SamplingParams
from gpu_worker.sampling.choose import sample_rows
from gpu_worker.sampling.host import NO_TOKEN, HostSampler
from gpu_worker.sampling.rows import SamplingRows

VOCAB, ROWS = 3001, 48
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 5.0},
    "nearly greedy": {"temperature": 1e-38},
    "top_k": {"top_k": 40},
    "large top_k": {"top_k": 2000},
    "top_p": {"top_p": 0.9},
    "flat top_p": {"top_p": 0.99, "temperature": 6.0},
    "top_p of top_k": {"top_p": 0.6, "top_k": 900, "temperature": 3.0},
    "no top_p": {"top_p": 0.0},
    "min_p": {"min_p": 0.05},
    "all": {"top_k": 700, "top_p": 0.9, "min_p": 0.001, "temperature": 2.0},
}


def logits_of(spread: float) -> torch.Tensor:
    return torch.randn((ROWS, VOCAB), generator=torch.Generator().manual_seed(4)) * spread


def table(**params: Any) -> SamplingRows:
    rows = SamplingRows(ROWS, (), torch.device("cpu"))
    for row in range(ROWS):
        rows.set(row, SamplingParams(seed=row << 33 | 977 * row, **params), row % 3)
    return rows


def on_host(logits: torch.Tensor, rows: SamplingRows, chosen: np.ndarray, offsets: np.ndarray, filtered: bool) -> Any:
    host = HostSampler(VOCAB)
    return host.sample(logits[chosen].numpy(), rows.host_columns(chosen), offsets[chosen], filtered=filtered)


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_tokens_as_torch_and_as_alone(way: str, spread: float) -> None:
    params = WAYS[way]
    is_filtered = bool(params.keys() - {"temperature"})
    rows, logits, offsets = table(**params), logits_of(spread), np.arange(ROWS) * 7
    everyone = np.arange(ROWS)
    found = on_host(logits, rows, everyone, offsets, is_filtered)
    columns = rows.device_columns(torch.from_numpy(everyone))
    wanted = sample_rows(logits.clone(), columns, torch.from_numpy(offsets.astype(np.int32)), filtered=is_filtered)
    assert found.tolist() == wanted.tolist()
    for row in (0, 17, 47):
        assert on_host(logits, rows, np.array([row]), offsets, is_filtered)[0] == found[row]
    if way in ("plain", "hot"):
        assert len(set(found.tolist())) > ROWS // 2, "tokens without variety would prove nothing"


def test_rows_without_a_token() -> None:
    logits = logits_of(1.0)
    logits[1, 5], logits[2], logits[3, 7] = float("nan"), float("-inf"), float("inf")
    found = on_host(logits, table(), np.arange(5), np.zeros(ROWS, np.int64), filtered=False)
    assert [int(token) == NO_TOKEN for token in found] == [False, True, True, True, False]


def test_masked_tokens_never_come() -> None:
    logits = torch.full((ROWS, VOCAB), float("-inf"))
    logits[:, 11] = -3.0
    found = on_host(logits, table(temperature=9.0), np.arange(ROWS), np.zeros(ROWS, np.int64), filtered=False)
    assert set(found.tolist()) == {11}
