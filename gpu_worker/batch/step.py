"""From rows to the flat tensors of one step. Vectorised: the only loop is over chunks, of which a step has few."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.batch.columns import Column, PlanColumns
from gpu_worker.batch.state import BatchState
from gpu_worker.model.attention import AttentionLayout, Chunk
from gpu_worker.model.decoder import StepInput

_SMALLEST_TABLE_WIDTH = 8


@dataclass(frozen=True, slots=True)
class StepSampling:
    """The rows of a step that sample, in the order of its result: decode rows, then chunks that reached their end."""

    rows: Column
    token_indices: Column
    """Which of the step's tokens gives each row's logits."""
    offsets: Column
    """Output tokens that each row has so far."""


def build_input(state: BatchState, columns: PlanColumns) -> StepInput:
    """Tensors of a step that has been checked. Decode tokens come first, then each chunk's."""
    rows, positions = _flatten(state, columns)
    places, offsets = np.divmod(positions, state.limits.block_size)

    def upload(values: npt.NDArray[np.integer]) -> torch.Tensor:
        return torch.from_numpy(values).to(state.device)

    return StepInput(
        token_ids=upload(state.tokens[rows, positions].astype(np.int64)),
        positions=upload(positions),
        blocks=upload(state.tables[rows, places].astype(np.int64)),
        offsets=upload(offsets),
        attention=_layout(state, columns),
    )


def step_sampling(state: BatchState, columns: PlanColumns) -> StepSampling:
    """Who samples. Call before the step advances the rows."""
    if not len(columns.chunk_rows):
        rows = columns.decode_rows
        return StepSampling(rows, np.arange(len(rows)), state.num_tokens[rows] - state.prompt_lens[rows])
    reached = state.samples(columns)
    rows = np.concatenate((columns.decode_rows, columns.chunk_rows[reached]))
    num_decodes = len(columns.decode_rows)
    chunk_ends = num_decodes + np.cumsum(columns.chunk_tokens) - 1
    indices = np.concatenate((np.arange(num_decodes), chunk_ends[reached]))
    return StepSampling(rows, indices, state.num_tokens[rows] - state.prompt_lens[rows])


def _flatten(state: BatchState, columns: PlanColumns) -> tuple[Column, Column]:
    """Row and position of each token of the step."""
    if not len(columns.chunk_rows):
        return columns.decode_rows, state.computed[columns.decode_rows]
    counts = columns.chunk_tokens
    chunk_rows = np.repeat(columns.chunk_rows, counts)
    starts = np.cumsum(counts) - counts
    within = np.arange(len(chunk_rows)) - np.repeat(starts, counts)
    rows = np.concatenate((columns.decode_rows, chunk_rows))
    positions = np.concatenate((state.computed[columns.decode_rows], state.computed[chunk_rows] + within))
    return rows, positions


def _layout(state: BatchState, columns: PlanColumns) -> AttentionLayout:
    rows = np.concatenate((columns.decode_rows, columns.chunk_rows))
    decode_lens = state.computed[columns.decode_rows] + 1
    chunk_lens = state.computed[columns.chunk_rows] + columns.chunk_tokens
    longest = max(decode_lens.max(initial=1), chunk_lens.max(initial=1))
    num_pages = -(-int(longest) // state.limits.block_size)
    # Room for the padding to a power of two that kernels group rows by.
    width = max(_SMALLEST_TABLE_WIDTH, 1 << (num_pages - 1).bit_length())
    tables = torch.from_numpy(state.tables[rows, :width]).to(state.device)
    starts = len(columns.decode_rows) + np.cumsum(columns.chunk_tokens) - columns.chunk_tokens
    chunks = zip(starts.tolist(), columns.chunk_tokens.tolist(), chunk_lens.tolist(), strict=True)
    return AttentionLayout(tables, decode_lens, tuple(Chunk(*chunk) for chunk in chunks))
