"""The words that describe a step in the device's arena: who computes what, who samples, which blocks are copied."""

from dataclasses import dataclass

import numpy as np

from gpu_worker.batch.columns import Column, PlanColumns
from gpu_worker.batch.state import BatchState
from gpu_worker.batch.step import StepSampling
from gpu_worker.cuda_runner.packing import Upload
from gpu_worker.kernels.triton.row_state import RowState

PADDING_ROW = -1


@dataclass(frozen=True, slots=True)
class StepAreaShape:
    """Sizes. R rows of the batch, C copies of blocks at most."""

    num_rows: int
    max_copies: int

    @property
    def num_words(self) -> int:
        """Words of the area."""
        return 6 * self._row_words + 2 * self.max_copies

    @property
    def _row_words(self) -> int:
        return self.num_rows + 16


class StepArea:
    """Views into the area. The slice that a step fills counts, the rest is whatever earlier steps left."""

    def __init__(self, shape: StepAreaShape, state: RowState) -> None:
        words = shape.num_rows + 16
        start = state.step_start
        names = ("rows", "cu_q", "ends", "sampling_rows", "sampling_tokens", "counted_rows")
        self._at = {name: start + index * words for index, name in enumerate(names)}
        self._at["copy_sources"] = start + len(names) * words
        self._at["copy_destinations"] = self._at["copy_sources"] + shape.max_copies
        self.rows, self.cu_q, self.ends, self.sampling_rows, self.sampling_tokens, self.counted_rows = (
            state.step_words[index * words : (index + 1) * words] for index in range(len(names))
        )
        """rows [n], cu_q [n + 1], ends [n] as in `StepRows`; sampling_rows and sampling_tokens [s]: rows that sample
        and the step's token that gives each one's logits; counted_rows: rows to count tokens of."""
        copies = state.step_words[len(names) * words :]
        self.copy_sources, self.copy_destinations = copies[: shape.max_copies], copies[shape.max_copies :]

    def add_decodes(self, upload: Upload, rows: Column, bucket: int) -> None:
        """Rows of a decode graph, padded to its size; everything else about them is constant."""
        padded = np.full(bucket, PADDING_ROW, np.int32)
        padded[: len(rows)] = rows
        upload.add(self._at["rows"], padded)

    def add_step(self, upload: Upload, state: BatchState, columns: PlanColumns, sampling: StepSampling) -> None:
        """Rows of any other step: decode rows, then chunks."""
        rows = np.concatenate((columns.decode_rows, columns.chunk_rows))
        counts = np.concatenate((np.ones_like(columns.decode_rows), columns.chunk_tokens))
        chunk_ends = state.computed[columns.chunk_rows] + columns.chunk_tokens
        upload.add(self._at["rows"], rows)
        upload.add(self._at["cu_q"], np.concatenate(([0], np.cumsum(counts))))
        # A decode goes on from what the device knows; 0 says so.
        upload.add(self._at["ends"], np.concatenate((np.zeros_like(columns.decode_rows), chunk_ends)))
        upload.add(self._at["sampling_rows"], sampling.rows)
        upload.add(self._at["sampling_tokens"], sampling.token_indices)

    def add_copies(self, upload: Upload, columns: PlanColumns) -> None:
        """Blocks to copy before the step computes."""
        upload.add(self._at["copy_sources"], columns.copy_sources)
        upload.add(self._at["copy_destinations"], columns.copy_destinations)

    def add_counted(self, upload: Upload, rows: list[int]) -> None:
        """Rows that boarded with penalties."""
        upload.add(self._at["counted_rows"], np.array(rows, np.int32))
