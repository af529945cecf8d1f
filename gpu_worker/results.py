"""Turns what a step computed into messages."""

import numpy as np
import numpy.typing as npt

from chairlift.ipc.device import NeedSnapshot, PromptLogprobs, RowLogprobs, StepDone, StepFailed
from gpu_worker.batch.columns import Column
from gpu_worker.sampling.logprobs import TokenLogprobs

Result = StepDone | StepFailed | NeedSnapshot
"""What is sent of a plan that was carried out, or could not be."""


def pack_ids(ids: npt.NDArray[np.integer]) -> bytes:
    """u32, little-endian."""
    return ids.astype("<u4").tobytes()


def pack_ends(kinds: npt.NDArray[np.uint32]) -> bytes:
    """Pairs (index, EndKind) of `kinds` [n] that are not 0."""
    if not kinds.any():
        return b""
    indices = np.flatnonzero(kinds)
    return pack_ids(np.stack((indices, kinds[indices]), axis=1))


def row_logprobs(parts: list[TokenLogprobs]) -> tuple[RowLogprobs, ...]:
    """One message a token, in the order of the step's result."""
    rows = [
        RowLogprobs(index, ids.astype("<u4").tobytes(), logprobs.astype("<f4").tobytes())
        for part in parts
        for index, ids, logprobs in zip(part.indices.tolist(), part.token_ids, part.logprobs, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: row.index))


def prompt_logprobs(row: int, offset: int, parts: list[TokenLogprobs]) -> PromptLogprobs:
    """One message for consecutive prompt tokens from position `offset` on."""
    token_ids = np.concatenate([part.token_ids for part in parts])
    logprobs = np.concatenate([part.logprobs for part in parts])
    return PromptLogprobs(
        row, offset, token_ids.shape[1], token_ids.astype("<u4").tobytes(), logprobs.astype("<f4").tobytes()
    )


def prompt_span(computed: int, num_tokens: int, prompt_len: int) -> Column:
    """Positions of the prompt tokens that a chunk's logits describe: those after each of its own."""
    return np.arange(computed + 1, min(computed + num_tokens + 1, prompt_len))
