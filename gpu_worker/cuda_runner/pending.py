"""A step between its launch and its result, and what its result needs of the rows as they were at the launch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import EndKind, Plan, PromptLogprobs, RowLogprobs
from gpu_worker.batch.columns import Column
from gpu_worker.cuda_runner.transfer import Download

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class EndsOfRows:
    """Ids that end the rows of a step; a later plan may give those rows to others."""

    end_ids: Column
    """[n, width], padded with -1."""
    ends_at_eos: npt.NDArray[np.bool_]
    eos_token_ids: tuple[int, ...]

    def kinds(self, token_ids: Column) -> npt.NDArray[np.uint32]:
        """The `EndKind` of each row's token, 0 where it does not end the row."""
        is_end = (self.end_ids == token_ids[:, None]).any(axis=1)
        is_eos = np.isin(token_ids, self.eos_token_ids) & self.ends_at_eos
        return np.where(is_end, np.where(is_eos, EndKind.EOS, EndKind.STOP_TOKEN), 0).astype(np.uint32)


class RowEnds:
    """The same for every row of the batch, as sequences board. `max_ends` ids a row at most."""

    def __init__(self, num_rows: int, eos_token_ids: tuple[int, ...], max_ends: int) -> None:
        self._eos_token_ids = eos_token_ids
        self._end_ids = np.full((num_rows, max_ends), _NO_TOKEN, np.int64)
        self._ends_at_eos = np.zeros(num_rows, np.bool_)

    def set(self, row: int, params: SamplingParams) -> tuple[int, ...]:
        """Takes over a sequence's end ids and returns them. Raises TooManyEndsError."""
        eos = () if params.ignore_eos else self._eos_token_ids
        ends = tuple(dict.fromkeys((*params.stop_token_ids, *eos)))
        if len(ends) > self._end_ids.shape[1]:
            raise TooManyEndsError(f"{len(ends)} ids that end a row, of {self._end_ids.shape[1]} at most")
        self._end_ids[row] = _NO_TOKEN
        self._end_ids[row, : len(ends)] = ends
        self._ends_at_eos[row] = not params.ignore_eos
        return ends

    def of(self, rows: Column) -> EndsOfRows:
        """A copy for the rows of a step."""
        return EndsOfRows(self._end_ids[rows], self._ends_at_eos[rows], self._eos_token_ids)


class TooManyEndsError(ValueError):
    """A row with more stop ids than the device has room for."""


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A plan that has been enqueued."""

    plan: Plan
    generation: int
    host_ns: int
    """Time that its launch took."""
    rows: Column
    """[n] rows that sample."""
    ends: EndsOfRows
    num_logprobs: Column
    """[n] alternatives that each of them asks for; -1: none."""
    download: Download
    """Words [n, 1] or [n, 2 + 2 k] of `DeviceStep.results`."""
    prompts: tuple[PromptLogprobs, ...]
    elapsed_ns: Callable[[], int]
    """Time on the device; to be asked once the step is done."""

    def is_done(self) -> bool:
        """Whether the result can be read without waiting."""
        return self.download.mark.is_done()

    def wait(self) -> None:
        """Until it can. Any thread may call this."""
        self.download.mark.wait()

    def row_logprobs(self, words: npt.NDArray[np.int32]) -> tuple[RowLogprobs, ...]:
        """Messages for the rows that asked, from the step's downloaded words."""
        most = (words.shape[1] - 2) // 2
        found = []
        for index in np.flatnonzero(self.num_logprobs >= 0).tolist():
            count = min(int(self.num_logprobs[index]), most)
            ids = np.concatenate((words[index, :1], words[index, 2 : 2 + count]))
            values = np.concatenate((words[index, 1:2], words[index, 2 + most : 2 + most + count])).view(np.float32)
            found.append(RowLogprobs(index, ids.astype("<u4").tobytes(), values.astype("<f4").tobytes()))
        return tuple(found)
