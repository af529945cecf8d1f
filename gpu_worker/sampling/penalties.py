"""Repetition, presence and frequency penalties, with the counters they need.

Counters live on the device and advance there with each sampled token, so that a plan never waits for one. Memory is
taken for rows that use penalties only.
"""

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.sampling.rows import FREQUENCY, PRESENCE, REPETITION, DeviceColumns

_NO_SLOT = -1


class PenaltyCounters:
    """Which tokens the rows with penalties have seen, a slot a row. S slots, V vocabulary."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._slots = np.full(num_rows, _NO_SLOT, np.int64)
        self._free: list[int] = []
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._output_counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def add(self, row: int, prompt: torch.Tensor, output: torch.Tensor) -> None:
        """Counts a row's tokens ([n] int64 ids each) from scratch."""
        self.remove(row)
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[row] = slot
        self._in_prompt[slot].zero_()[prompt] = True
        counts = self._output_counts[slot].zero_()
        counts.scatter_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def remove(self, row: int) -> None:
        """Frees a row's slot; a row without one is left as it is."""
        if self._slots[row] != _NO_SLOT:
            self._free.append(int(self._slots[row]))
            self._slots[row] = _NO_SLOT

    def clear(self) -> None:
        """Frees every slot."""
        self._slots.fill(_NO_SLOT)
        self._free = list(range(self._in_prompt.shape[0]))

    def apply(self, logits: torch.Tensor, rows: npt.NDArray[np.int64], params: DeviceColumns) -> torch.Tensor:
        """Penalised logits [n, V] of rows that all have a slot.

        Repetition divides positive and multiplies negative logits of every token in prompt or output (Keskar et al.,
        2019); presence and frequency subtract for tokens in the output only.
        """
        slots = self._slots_on_device(rows)
        counts = self._output_counts[slots]
        is_output = counts > 0
        repetition = params.float_column(REPETITION)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(is_output | self._in_prompt[slots], repeated, logits)
        logits -= params.float_column(FREQUENCY) * counts
        logits -= params.float_column(PRESENCE) * is_output
        return logits

    def advance(self, rows: npt.NDArray[np.int64], sampled: torch.Tensor) -> None:
        """Counts one sampled token ([n] int64) for each of rows that all have a slot."""
        slots = self._slots_on_device(rows)
        ones = torch.ones_like(sampled, dtype=torch.int32)
        self._output_counts.index_put_((slots, sampled), ones, accumulate=True)

    def _slots_on_device(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(self._slots[rows]).to(self._in_prompt.device)

    def _grow(self) -> None:
        old = self._in_prompt.shape[0]
        more = min(max(old, 1), len(self._slots) - old)
        vocab_size = self._in_prompt.shape[1]
        self._in_prompt = torch.cat((self._in_prompt, self._in_prompt.new_zeros((more, vocab_size))))
        self._output_counts = torch.cat((self._output_counts, self._output_counts.new_zeros((more, vocab_size))))
        self._free.extend(range(old, old + more))
