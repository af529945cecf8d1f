"""Greedy sampling against the sampler's own torch."""

import pytest
import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError
from gpu_worker.kernels.cpu.greedy import greedy_rows
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.sampling import choose


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (5, 199), (7, 49_152)])
def test_the_largest_of_each_row(library: Library, team: ThreadTeam, shape: tuple[int, int]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(greedy_rows(library, team, logits), choose.greedy_rows(logits))


def test_equals_go_to_the_lowest_id_and_nan_has_none(library: Library, team: ThreadTeam) -> None:
    logits = torch.full((5, 100), -1.0)
    logits[0, [97, 40]] = 3.0
    logits[1, 99] = float("nan")
    logits[2] = float("-inf")
    logits[3, 98] = float("inf")
    logits[4, 3] = float("nan")
    assert greedy_rows(library, team, logits).tolist() == [40, -1, 0, 98, -1]


def test_logits_of_another_kind_are_refused(library: Library, team: ThreadTeam) -> None:
    with pytest.raises(KernelArgumentError, match=r"logits is torch\.bfloat16"):
        greedy_rows(library, team, torch.zeros(2, 3, dtype=torch.bfloat16))
