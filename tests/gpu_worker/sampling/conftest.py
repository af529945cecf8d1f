"""A sampler over a few rows, driven as the runner does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from chairlift.ipc.common import SamplingParams
from gpu_worker.sampling.penalties import PenaltyCounters
from gpu_worker.sampling.rows import Needs, SamplingRows
from gpu_worker.sampling.sampler import Sampled, Sampler

CPU = torch.device("cpu")


class SamplerDriver:
    """Rows 0, 1, … with the parameters given; row i may have a prompt and an output."""

    def __init__(self, vocab_size: int, num_rows: int = 64, eos: tuple[int, ...] = (2,)) -> None:
        self.rows = SamplingRows(num_rows, eos, CPU)
        self.counters = PenaltyCounters(num_rows, vocab_size, CPU)
        self.sampler = Sampler(self.rows, self.counters)

    def board(
        self,
        row: int,
        params: SamplingParams,
        prompt: list[int] | None = None,
        output: list[int] | None = None,
        choice: int = 0,
    ) -> None:
        self.rows.set(row, params, choice)
        if self.rows.needs[row] & Needs.PENALTIES:
            self.counters.add(
                row, torch.tensor(prompt or [], dtype=torch.int64), torch.tensor(output or [], dtype=torch.int64)
            )

    def sample(self, logits: torch.Tensor, rows: list[int], offsets: list[int] | None = None) -> Sampled:
        """The logits given are left as they are."""
        return self.sampler.sample(
            logits.clone(), np.array(rows, np.int64), np.array(offsets or [0] * len(rows), np.int64)
        )

    def ids(self, logits: torch.Tensor, rows: list[int], offsets: list[int] | None = None) -> list[int]:
        return self.sample(logits, rows, offsets).token_ids.tolist()


@pytest.fixture
def new_driver() -> Callable[..., SamplerDriver]:
    return SamplerDriver
