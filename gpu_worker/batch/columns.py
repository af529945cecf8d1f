"""The packed columns of a plan as numpy arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.ipc.device import Plan
from gpu_worker.batch.limits import InvalidPlanError

Column = npt.NDArray[np.int64]

# Most columns of most plans are empty.
_EMPTY: Column = np.empty(0, np.int64)
_NO_PAIRS: Column = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Swaps:
    """Blocks to copy to the host pool, and from it; the former are copied first."""

    out_blocks: Column
    out_host_blocks: Column
    in_host_blocks: Column
    in_blocks: Column


_NO_SWAPS = Swaps(_EMPTY, _EMPTY, _EMPTY, _EMPTY)


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """Everything of a plan that is a column, unpacked. Pairs are split into two columns of equal length."""

    left: Column
    appended_rows: Column
    appended_blocks: Column
    copy_sources: Column
    copy_destinations: Column
    swaps: Swaps
    decode_rows: Column
    chunk_rows: Column
    chunk_tokens: Column

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return len(self.decode_rows) + int(self.chunk_tokens.sum())


def unpack_plan(plan: Plan) -> PlanColumns:
    """Raises InvalidPlanError for a column that is no whole number of items or pairs."""
    appended = unpack_pairs("appended", plan.appended)
    copies = unpack_pairs("copies", plan.copies)
    chunks = unpack_pairs("chunks", plan.chunks)
    return PlanColumns(
        unpack_column("left", plan.left),
        appended[:, 0],
        appended[:, 1],
        copies[:, 0],
        copies[:, 1],
        _unpack_swaps(plan),
        unpack_column("decode", plan.decode),
        chunks[:, 0],
        chunks[:, 1],
    )


def _unpack_swaps(plan: Plan) -> Swaps:
    if not plan.swap_out and not plan.swap_in:
        return _NO_SWAPS
    swapped_out, swapped_in = unpack_pairs("swap_out", plan.swap_out), unpack_pairs("swap_in", plan.swap_in)
    return Swaps(swapped_out[:, 0], swapped_out[:, 1], swapped_in[:, 0], swapped_in[:, 1])


def unpack_column(name: str, packed: bytes) -> Column:
    """u32 items as int64. Raises InvalidPlanError naming the column."""
    if not packed:
        return _EMPTY
    if len(packed) % 4:
        raise InvalidPlanError(f"{name}: {len(packed)} bytes are no column of u32")
    return np.frombuffer(packed, "<u4").astype(np.int64)


def unpack_pairs(name: str, packed: bytes) -> Column:
    """Pairs of u32 items, [n, 2] int64. Raises InvalidPlanError naming the column."""
    if not packed:
        return _NO_PAIRS
    column = unpack_column(name, packed)
    if len(column) % 2:
        raise InvalidPlanError(f"{name}: {len(column)} items are no pairs")
    return column.reshape(-1, 2)
