"""Rows of the batch: what each holds, and how a plan changes them.

All of it lies in host memory, as numpy arrays: a step's tensors are made from them and uploaded.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chairlift.ipc.device import BoardedRow, Plan
from gpu_worker.batch.boarding import check_boarded
from gpu_worker.batch.columns import Column, PlanColumns
from gpu_worker.batch.limits import BatchLimits, InvalidPlanError
from gpu_worker.batch.moves import check_moves


@dataclass(frozen=True, slots=True)
class Boarding:
    """A row that has boarded."""

    message: BoardedRow
    tokens: Column
    """[n] ids known."""


class BatchState:
    """R rows. After an InvalidPlanError the state is undefined until `clear`."""

    def __init__(self, limits: BatchLimits, device: torch.device) -> None:
        """`device`: where a step's tensors are wanted."""
        self.limits = limits
        self.device = device
        num_rows = limits.max_num_seqs
        self.is_taken = np.zeros(num_rows, np.bool_)
        self.num_tokens = np.zeros(num_rows, np.int64)
        """[R] ids known, the one sampled last included."""
        self.prompt_lens = np.zeros(num_rows, np.int64)
        self.computed = np.zeros(num_rows, np.int64)
        """[R] leading tokens whose KV is in the cache."""
        self._num_blocks = np.zeros(num_rows, np.int64)
        self.tokens = np.zeros((num_rows, limits.max_model_len + 1), np.int32)
        """[R, max_model_len + 1] the token pool; one more than a sequence may hold, for a row that is cut there."""
        self.tables = np.zeros((num_rows, limits.max_blocks_per_row), np.int32)
        """[R, max_blocks_per_row] block tables."""
        self.block_tables = torch.from_numpy(self.tables)
        """The same memory as a tensor."""

    def clear(self) -> None:
        """Forgets every row."""
        self.is_taken.fill(False)
        self._num_blocks.fill(0)

    def change(self, plan: Plan, columns: PlanColumns) -> list[Boarding]:
        """Applies left, boarded and appended, and checks the step against the result. Raises InvalidPlanError."""
        self._leave(columns.left)
        boardings = [self._board(boarded) for boarded in plan.boarded]
        self.append(columns.appended_rows, columns.appended_blocks)
        check_moves(columns, self.limits)
        self._check_step(columns)
        return boardings

    def samples(self, columns: PlanColumns) -> npt.NDArray[np.bool_]:
        """Which of the step's chunks reach the end of their row, and so sample."""
        reached: npt.NDArray[np.bool_] = (
            self.computed[columns.chunk_rows] + columns.chunk_tokens == self.num_tokens[columns.chunk_rows]
        )
        return reached

    def advance(self, columns: PlanColumns, sampling_rows: Column, sampled: Column) -> None:
        """After the step: `sampled` ([n] ids) become the next known tokens of `sampling_rows`."""
        self.computed[columns.decode_rows] += 1
        self.computed[columns.chunk_rows] += columns.chunk_tokens
        self.tokens[sampling_rows, self.num_tokens[sampling_rows]] = sampled
        self.num_tokens[sampling_rows] += 1

    def advance_decodes(self, rows: Column, sampled: Column) -> None:
        """`advance` for a step of decodes alone."""
        self.computed[rows] += 1
        self.tokens[rows, self.num_tokens[rows]] = sampled
        self.num_tokens[rows] += 1

    def check_blocks(self, rows: Column, ends: Column) -> None:
        """Raises InvalidPlanError where a row's table does not reach the token before its end."""
        self._refuse_where(ends > self._num_blocks[rows] * self.limits.block_size, rows, "beyond the block table")

    def _leave(self, rows: Column) -> None:
        if not len(rows):
            return
        self._check_rows("left", rows)
        self.is_taken[rows] = False
        self._num_blocks[rows] = 0

    def _board(self, boarded: BoardedRow) -> Boarding:
        tokens, blocks = check_boarded(boarded, self.limits)
        row = boarded.row
        if self.is_taken[row]:
            raise InvalidPlanError(f"boarded row {row} is taken")
        self.is_taken[row] = True
        self.num_tokens[row], self.prompt_lens[row] = len(tokens), boarded.prompt_len
        self.computed[row] = boarded.computed
        self._num_blocks[row] = len(blocks)
        self.tokens[row, : len(tokens)] = tokens
        self.tables[row, : len(blocks)] = blocks
        return Boarding(boarded, tokens)

    def append(self, rows: Column, blocks: Column) -> None:
        """Puts blocks ([n]) at the ends of tables of `rows` ([n], a row may come twice). Raises InvalidPlanError."""
        if not len(rows):
            return
        self._check_rows("appended", rows, distinct=False)
        if blocks.max() >= self.limits.num_blocks:
            raise InvalidPlanError(f"an appended block is outside the cache of {self.limits.num_blocks}")
        # Several blocks for one row go behind each other in the order of the plan.
        order = np.argsort(rows, kind="stable")
        rows, blocks = rows[order], blocks[order]
        earlier_in_plan = np.arange(len(rows)) - np.searchsorted(rows, rows)
        places = self._num_blocks[rows] + earlier_in_plan
        if places.max() >= self.limits.max_blocks_per_row:
            raise InvalidPlanError(f"a block table would pass {self.limits.max_blocks_per_row} blocks")
        np.add.at(self._num_blocks, rows, 1)
        self.tables[rows, places] = blocks

    def _check_step(self, columns: PlanColumns) -> None:
        rows = np.concatenate((columns.decode_rows, columns.chunk_rows))
        counts = np.concatenate((np.ones_like(columns.decode_rows), columns.chunk_tokens))
        if columns.num_tokens > self.limits.max_num_batched_tokens:
            raise InvalidPlanError(
                f"{columns.num_tokens} tokens in one step, of {self.limits.max_num_batched_tokens} at most"
            )
        self._check_rows("computed", rows)
        ends = self.computed[rows] + counts
        self._refuse_where(counts < 1, rows, "a chunk without tokens")
        self._refuse_where(ends > self.num_tokens[rows], rows, "more tokens to compute than are known")
        self._refuse_where(ends > self.limits.max_model_len, rows, "beyond the context length")
        self.check_blocks(rows, ends)
        decodes = columns.decode_rows
        is_behind = self.computed[decodes] != self.num_tokens[decodes] - 1
        self._refuse_where(is_behind, decodes, "a decode of a row with more than one token to compute")

    def _check_rows(self, what: str, rows: Column, *, distinct: bool = True) -> None:
        if not len(rows):
            return
        if rows.max() >= self.limits.max_num_seqs:
            raise InvalidPlanError(f"{what}: a row is outside the batch of {self.limits.max_num_seqs}")
        if not self.is_taken[rows].all():
            raise InvalidPlanError(f"{what}: a row is empty")
        if distinct and np.bincount(rows).max() > 1:
            raise InvalidPlanError(f"{what}: a row comes twice")

    @staticmethod
    def _refuse_where(is_wrong: npt.NDArray[np.bool_], rows: Column, what: str) -> None:
        if is_wrong.any():
            wrong = tuple(rows[is_wrong].tolist())
            raise InvalidPlanError(f"rows {', '.join(map(str, wrong))}: {what}", wrong)
