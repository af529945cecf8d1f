"""Gathering of a step's inputs against its reference, with padding rows and chunks."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from gpu_worker.kernels.triton.plan import StepRows, StepTokens, gather_step, gather_step_reference
from gpu_worker.kernels.triton.row_state import NUM_KNOWN, RowState, RowStateShape

CPU = torch.device("cpu")


def plan_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and check of each case."""
    yield "decodes with padding", partial(_check, [3, 0, -1, 5, -1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0])
    yield "decodes and chunks", partial(_check, [2, 1, 4, 0], [1, 1, 37, 5], [0, 0, 40, 30])
    yield "a chunk alone", partial(_check, [4], [50], [0])


def _check(rows: list[int], counts: list[int], ends: list[int]) -> float:
    generator = torch.Generator().manual_seed(4)
    state = RowState(RowStateShape(6, 65, 5, 4, 100), CPU)
    state.tokens.copy_(torch.randint(0, 100, state.tokens.shape, generator=generator))
    state.block_tables.copy_(torch.randint(0, 1000, state.block_tables.shape, generator=generator))
    state.integers[:, NUM_KNOWN] = torch.tensor([41, 17, 16, 33, 50, 64])
    step = StepRows(
        torch.tensor(rows).int(), torch.tensor([0, *counts]).cumsum(0).int(), torch.tensor(ends, dtype=torch.int32)
    )
    found, wanted = (StepTokens.make(sum(counts), len(rows), CPU) for _ in range(2))
    gather_step(step, state, 16, max(counts), found)
    gather_step_reference(step, state, 16, wanted)
    for name in ("token_ids", "positions", "blocks", "offsets", "kv_lens"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert torch.equal(mine, theirs), f"{name}: {mine.tolist()} != {theirs.tolist()}"
    return 0.0
