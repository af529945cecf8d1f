"""Decoding the same rows again: the usual step, whose tensors are moved on in place rather than built anew.

Only for a batch whose tensors lie in host memory.
"""

import numpy as np

from chairlift.ipc.device import Plan
from gpu_worker.batch.columns import Column, unpack_pairs
from gpu_worker.batch.state import BatchState
from gpu_worker.model.decoder import StepInput


class SteadyDecode:
    """A step of decodes alone that has been carried out, as the start of the next."""

    def __init__(self, state: BatchState, plan: Plan, rows: Column, step: StepInput) -> None:
        """Takes over the tensors of `step`: they are this object's to change. Every row has sampled since."""
        self.rows = rows
        self.step = step
        self._state = state
        self._decode = plan.decode
        # The same memory as the step's tensors.
        self._token_ids, self._positions = step.token_ids.numpy(), step.positions.numpy()
        self._blocks, self._offsets = step.blocks.numpy(), step.offsets.numpy()
        self._places = np.empty_like(self._positions)
        self._tables = step.attention.block_tables.numpy()
        self._lens = step.attention.decode_kv_lens
        limits = state.limits
        self._longest = min(limits.max_model_len, self._tables.shape[1] * limits.block_size)

    def continues_with(self, plan: Plan) -> bool:
        """Whether a plan is one more token for the same rows and nothing else, and these tensors have room for it."""
        is_same = plan.decode == self._decode and not (
            plan.reset or plan.left or plan.boarded or plan.copies or plan.chunks or plan.swap_out or plan.swap_in
        )
        return is_same and int(self._lens.max()) < self._longest

    def advance(self, plan: Plan) -> None:
        """Moves every row one token on. Raises InvalidPlanError as `BatchState.change` does."""
        state, rows, positions = self._state, self.rows, self._positions
        if plan.appended:
            appended = unpack_pairs("appended", plan.appended)
            state.append(appended[:, 0], appended[:, 1])
            np.copyto(self._tables, state.tables[rows, : self._tables.shape[1]])
        positions += 1
        self._lens += 1
        state.check_blocks(rows, self._lens)
        np.copyto(self._token_ids, state.tokens[rows, positions])
        np.divmod(positions, state.limits.block_size, out=(self._places, self._offsets))
        np.copyto(self._blocks, state.tables[rows, self._places])
