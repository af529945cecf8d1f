"""A step's changes to row state as one block of words: what is copied to the device once, and applied by one launch.

Layout of the block, int32: (target, source, length) of each run, then the runs' words. Targets are places in the
arena of `RowState`; sources count from the start of the block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.ipc.common import SamplingParams
from gpu_worker.kernels.triton import row_state
from gpu_worker.kernels.triton.row_state import RowState
from gpu_worker.sampling.rows import Needs

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BoardingWords:
    """A sequence that takes a row, as the device wants it."""

    row: int
    tokens: npt.NDArray[np.integer]
    """[n] ids known."""
    prompt_len: int
    blocks: npt.NDArray[np.integer]
    choice: int
    params: SamplingParams
    needs: Needs
    end_ids: tuple[int, ...]
    """Ids that end the row."""


@dataclass(frozen=True, slots=True)
class UploadPart:
    """What was written to a staging buffer."""

    num_words: int
    num_runs: int
    longest: int
    """Words of the longest run."""


class Upload:
    """Collects runs, then writes them into staging buffers."""

    def __init__(self, state: RowState) -> None:
        self._state = state
        self._targets: list[int] = []
        self._runs: list[Words] = []

    def add(self, target: int, words: npt.NDArray[np.generic]) -> None:
        """A run of 32-bit words for `target` and what follows; floats go by their bits."""
        if words.dtype == np.float32:
            bits: Words = words.view(np.int32)
        else:
            bits = words.astype(np.int32)
        if len(bits):
            self._targets.append(target)
            self._runs.append(bits)

    def add_boarding(self, boarding: BoardingWords) -> None:
        """All of a row: parameters, ids, block table, end ids and bias."""
        state, row, params = self._state, boarding.row, boarding.params
        self.add(state.integer_region.at(row), _integer_columns(boarding))
        self.add(state.float_region.at(row), _float_columns(params))
        self.add(state.token_region.at(row), boarding.tokens)
        self.add(state.table_region.at(row), boarding.blocks)
        self.add(state.end_region.at(row), np.array(boarding.end_ids, np.int32))
        self.add(state.bias_id_region.at(row), np.array([token for token, _ in params.logit_bias], np.int32))
        self.add(state.bias_value_region.at(row), np.array([value for _, value in params.logit_bias], np.float32))

    def write(self, staging: Words) -> "UploadPart | None":
        """Moves as many runs as fit to the front of `staging`; None when nothing is left.

        Nearly every step fits at once. A run that alone is longer than the room goes in pieces.
        """
        if not self._runs:
            return None
        count = self._cut_to(len(staging))
        runs, targets = self._runs[:count], self._targets[:count]
        del self._runs[:count], self._targets[:count]
        lengths = np.array([len(run) for run in runs], np.int64)
        header, total = 3 * count, 3 * count + int(lengths.sum())
        table = staging[:header].reshape(-1, 3)
        table[:, 0] = targets
        table[:, 1] = header + np.cumsum(lengths) - lengths
        table[:, 2] = lengths
        np.concatenate(runs, out=staging[header:total])
        return UploadPart(total, count, int(lengths.max()))

    def _cut_to(self, room: int) -> int:
        """Number of leading runs that fit, 1 at least: then the first run is cut."""
        used = 0
        for index, run in enumerate(self._runs):
            used += 3 + len(run)
            if used > room:
                if index:
                    return index
                piece = room - 3
                self._runs[:1] = [run[:piece], run[piece:]]
                self._targets[:1] = [self._targets[0], self._targets[0] + piece]
                return 1
        return len(self._runs)


def _integer_columns(boarding: BoardingWords) -> Words:
    params = boarding.params
    seed = np.array([params.seed], "<u8").view("<i4")
    columns = np.zeros(row_state.NUM_INTEGERS, np.int32)
    columns[row_state.TOP_K] = min(params.top_k, 2**31 - 1)
    columns[row_state.SEED_LOW], columns[row_state.SEED_HIGH] = seed
    columns[row_state.CHOICE] = boarding.choice
    columns[row_state.NEEDS] = int(boarding.needs)
    columns[row_state.MIN_TOKENS] = params.min_tokens
    columns[row_state.PROMPT_LEN] = boarding.prompt_len
    columns[row_state.NUM_KNOWN] = len(boarding.tokens)
    columns[row_state.NUM_ENDS] = len(boarding.end_ids)
    columns[row_state.NUM_BIAS] = len(params.logit_bias)
    columns[row_state.NUM_LOGPROBS] = -1 if params.logprobs is None else params.logprobs
    return columns


def _float_columns(params: SamplingParams) -> npt.NDArray[np.float32]:
    columns = np.zeros(row_state.NUM_FLOATS, np.float32)
    columns[row_state.TEMPERATURE] = params.temperature
    columns[row_state.TOP_P] = params.top_p
    columns[row_state.MIN_P] = params.min_p
    columns[row_state.REPETITION] = params.repetition_penalty
    columns[row_state.PRESENCE] = params.presence_penalty
    columns[row_state.FREQUENCY] = params.frequency_penalty
    return columns
