"""Sampling parameters of every row of the batch, as columns: on the host for grouping, on the device for arithmetic."""

import enum
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import EndKind

# Columns of the float table.
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
# Columns of the integer table.
TOP_K, SEED_LOW, SEED_HIGH, CHOICE = range(4)

_NO_TOKEN = -1
_ScalarT = TypeVar("_ScalarT", bound=np.generic)


class Needs(enum.IntFlag):
    """What a row asks for beyond the largest logit. A greedy row without extras has none and costs nothing."""

    RANDOM = 1
    """A temperature above 0."""
    FILTER = 2
    """top_k, top_p or min_p."""
    PENALTIES = 4
    BIAS = 8
    MIN_TOKENS = 16
    LOGPROBS = 32


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """Parameters of chosen rows on the device."""

    floats: torch.Tensor
    """[rows, 6] float32."""
    integers: torch.Tensor
    """[rows, 4] int32."""

    def float_column(self, column: int) -> torch.Tensor:
        """[rows, 1], ready to broadcast over the vocabulary."""
        return self.floats[:, column, None]

    def take(self, rows: torch.Tensor) -> "DeviceColumns":
        """The columns of some of these rows."""
        return DeviceColumns(self.floats[rows], self.integers[rows])


@dataclass(frozen=True, slots=True)
class HostColumns:
    """Parameters of chosen rows on the host."""

    floats: npt.NDArray[np.float32]
    """[rows, 6]."""
    integers: npt.NDArray[np.int32]
    """[rows, 4]."""


class SamplingRows:
    """The table. Rows are set when a sequence boards; what they held before is forgotten then."""

    def __init__(self, num_rows: int, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._floats = np.zeros((num_rows, 6), np.float32)
        self._integers = np.zeros((num_rows, 4), np.int32)
        self._device_columns: DeviceColumns | None = None
        self.needs = np.zeros(num_rows, np.uint8)
        """`Needs` of each row."""
        self.min_tokens = np.zeros(num_rows, np.int64)
        self.num_logprobs = np.full(num_rows, _NO_TOKEN, np.int64)
        """Alternatives beside each sampled token; -1 is off. Likewise for prompt tokens."""
        self.num_prompt_logprobs = np.full(num_rows, _NO_TOKEN, np.int64)
        self.end_ids = np.full((num_rows, 8), _NO_TOKEN, np.int64)
        """Ids that end the row: its stop ids, and EOS unless it ignores that; padded with -1."""
        self._ends_at_eos = np.zeros(num_rows, np.bool_)
        self.bias_ids = np.zeros((num_rows, 0), np.int64)
        self.bias_values = np.zeros((num_rows, 0), np.float32)

    def set(self, row: int, params: SamplingParams, choice: int) -> None:
        """Takes over a sequence's parameters."""
        temperature = params.temperature
        self._floats[row] = (
            temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        seed = np.array([params.seed], "<u8").view("<i4")
        self._integers[row] = (min(params.top_k, 2**31 - 1), seed[0], seed[1], choice)
        self._device_columns = None
        self.needs[row] = _needs_of(params)
        self.min_tokens[row] = params.min_tokens
        self.num_logprobs[row] = _NO_TOKEN if params.logprobs is None else params.logprobs
        self.num_prompt_logprobs[row] = _NO_TOKEN if params.prompt_logprobs is None else params.prompt_logprobs
        self._ends_at_eos[row] = not params.ignore_eos
        ends = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *self._eos_token_ids)
        self.end_ids = _widened(self.end_ids, len(ends), _NO_TOKEN)
        self.end_ids[row] = _NO_TOKEN
        self.end_ids[row, : len(ends)] = ends
        self._set_bias(row, params.logit_bias)

    def host_columns(self, rows: npt.NDArray[np.int64]) -> HostColumns:
        """Parameters of `rows` ([n])."""
        return HostColumns(self._floats[rows], self._integers[rows])

    def device_columns(self, rows: torch.Tensor) -> DeviceColumns:
        """Parameters of `rows` ([n] int64 on the device); the table goes up again only after a row was set."""
        if self._device_columns is None:
            floats = torch.from_numpy(self._floats.copy()).to(self._device)
            self._device_columns = DeviceColumns(floats, torch.from_numpy(self._integers.copy()).to(self._device))
        return self._device_columns.take(rows)

    def end_kinds(self, rows: npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The `EndKind` of each row's token ([n] each), 0 where the token does not end its row."""
        is_end = (self.end_ids[rows] == token_ids[:, None]).any(axis=1)
        kinds = np.zeros(len(rows), np.uint32)
        if is_end.any():
            is_eos = np.isin(token_ids, self._eos_token_ids) & self._ends_at_eos[rows]
            kinds[is_end] = np.where(is_eos, EndKind.EOS, EndKind.STOP_TOKEN)[is_end]
        return kinds

    def _set_bias(self, row: int, bias: tuple[tuple[int, float], ...]) -> None:
        self.bias_ids = _widened(self.bias_ids, len(bias), 0)
        self.bias_values = _widened(self.bias_values, len(bias), 0)
        # Padding adds 0 to token 0.
        self.bias_ids[row] = 0
        self.bias_values[row] = 0
        self.bias_ids[row, : len(bias)] = [token for token, _ in bias]
        self.bias_values[row, : len(bias)] = [value for _, value in bias]


def _needs_of(params: SamplingParams) -> Needs:
    needs = Needs(0)
    if np.float32(params.temperature) > 0:
        needs |= Needs.RANDOM
        if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
            needs |= Needs.FILTER
    if params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0:
        needs |= Needs.PENALTIES
    if params.logit_bias:
        needs |= Needs.BIAS
    if params.min_tokens > 0:
        needs |= Needs.MIN_TOKENS
    if params.logprobs is not None:
        needs |= Needs.LOGPROBS
    return needs


def _widened(table: npt.NDArray[_ScalarT], width: int, filler: int) -> npt.NDArray[_ScalarT]:
    """The table with at least `width` columns."""
    if width <= table.shape[1]:
        return table
    wider = np.full((table.shape[0], -(-width // 8) * 8), filler, table.dtype)
    wider[:, : table.shape[1]] = table
    return wider
