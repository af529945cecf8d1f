"""Whether the blocks that a plan moves, on the device or to the host pool and back, are there and none is lost."""

import numpy as np

from gpu_worker.batch.columns import Column, PlanColumns
from gpu_worker.batch.limits import BatchLimits, InvalidPlanError


def check_moves(columns: PlanColumns, limits: BatchLimits) -> None:
    """Raises InvalidPlanError for a block that does not exist, and for two that would go to one place."""
    cache, host = f"the cache of {limits.num_blocks}", f"the host pool of {limits.num_host_blocks}"
    _check_inside("copied", columns.copy_sources, limits.num_blocks, cache)
    _check_places("copied", columns.copy_destinations, limits.num_blocks, cache)
    swaps = columns.swaps
    _check_inside("swapped out", swaps.out_blocks, limits.num_blocks, cache)
    _check_places("swapped out", swaps.out_host_blocks, limits.num_host_blocks, host)
    _check_inside("swapped in", swaps.in_host_blocks, limits.num_host_blocks, host)
    _check_places("swapped in", swaps.in_blocks, limits.num_blocks, cache)


def _check_inside(what: str, blocks: Column, size: int, where: str) -> None:
    if len(blocks) and blocks.max() >= size:
        raise InvalidPlanError(f"a block {what} is outside {where}")


def _check_places(what: str, blocks: Column, size: int, where: str) -> None:
    _check_inside(what, blocks, size, where)
    if len(blocks) > 1 and len(np.unique(blocks)) != len(blocks):
        raise InvalidPlanError(f"two blocks {what} go to one place")
