"""The batch with its rows on the device: the host keeps lengths and checks plans, and says what to upload."""

import numpy as np
import torch

from chairlift.ipc.device import Plan
from gpu_worker.batch.columns import Column, PlanColumns
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.batch.state import BatchState, Boarding
from gpu_worker.cuda_runner.packing import Upload
from gpu_worker.kernels.triton.row_state import RowState


class ResidentBatch(BatchState):
    """A `BatchState` whose tensors are a host copy of what plans brought; sampled tokens exist on the device only."""

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits, torch.device("cpu"))

    def change_and_pack(self, plan: Plan, columns: PlanColumns, state: RowState, upload: Upload) -> list[Boarding]:
        """As `change`, and adds the new entries of block tables to the upload. Boarded rows are the caller's to add."""
        boarded = {row.row for row in plan.boarded}
        grown = [row for row in dict.fromkeys(columns.appended_rows.tolist()) if row not in boarded]
        before = self._num_blocks.copy()
        boardings = self.change(plan, columns)
        for row in grown:
            start, end = int(before[row]), int(self._num_blocks[row])
            upload.add(state.table_region.at(row, start), self.block_tables[row, start:end].numpy())
        return boardings

    def blocks_of(self, row: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
        """The row's block table, what the plan appended included."""
        table: np.ndarray[tuple[int, ...], np.dtype[np.int32]] = self.block_tables[row].numpy()
        return table[: int(self._num_blocks[row])]

    def advance_lengths(self, columns: PlanColumns, sampling_rows: Column) -> None:
        """What a step does to lengths, before the device has done it: each row that samples knows one token more."""
        self.computed[columns.decode_rows] += 1
        self.computed[columns.chunk_rows] += columns.chunk_tokens
        self.num_tokens[sampling_rows] += 1
