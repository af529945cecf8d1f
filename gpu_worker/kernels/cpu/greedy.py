"""Greedy sampling on native kernels: what `gpu_worker.sampling.choose.greedy_rows` computes in torch."""

import torch

from gpu_worker.kernels.cpu.arguments import address
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.threads import ThreadTeam


def greedy_rows(library: Library, team: ThreadTeam, logits: torch.Tensor) -> torch.Tensor:
    """The largest logit's id in each row of [rows, V] float32, the lowest among equals, -1 where a logit is NaN.

    Returns [rows] int64. Raises KernelArgumentError.
    """
    pointer = address(logits, "logits", (None, None), torch.float32)
    out = torch.empty(len(logits), dtype=torch.int64)
    library.greedy(team.pool, pointer, logits.shape[0], logits.shape[1], out.data_ptr())
    return out
