"""Log-probabilities of chosen tokens and of their alternatives, from the model's own logits.

Taken before bias, penalties, masks and temperature. Only rows that ask are touched.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_LOGIT_ROWS = 64
"""Rows of the vocabulary's width that prompt log-probabilities hold at a time."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """n tokens with k alternatives each. The token comes first, then the k most likely, best first."""

    indices: npt.NDArray[np.int64]
    """[n]: which of the caller's rows they belong to."""
    token_ids: npt.NDArray[np.uint32]
    """[n, 1 + k]."""
    logprobs: npt.NDArray[np.float32]
    """[n, 1 + k]."""


class LogprobTask:
    """The first half of the work, done before the logits are changed: n rows with the same k."""

    def __init__(self, logits: torch.Tensor, indices: npt.NDArray[np.int64], num_alternatives: int) -> None:
        self._indices = indices
        self._logprobs = torch.log_softmax(logits, dim=1)
        self._top = self._logprobs.topk(min(num_alternatives, logits.shape[1]), dim=1)

    def finish(self, token_ids: torch.Tensor) -> TokenLogprobs:
        """The result for the tokens of all the caller's rows, of which `indices` asked."""
        chosen = token_ids[torch.from_numpy(self._indices).to(token_ids.device)][:, None]
        ids = torch.cat((chosen, self._top.indices), dim=1)
        logprobs = torch.cat((self._logprobs.gather(1, chosen), self._top.values), dim=1)
        return TokenLogprobs(self._indices, ids.cpu().numpy().astype(np.uint32), logprobs.cpu().numpy())


def logprob_tasks(logits: torch.Tensor, num_alternatives: npt.NDArray[np.int64]) -> list[LogprobTask]:
    """A task for each k that occurs in `num_alternatives` ([rows], -1: not asked)."""
    tasks = []
    for count in np.unique(num_alternatives):
        if count >= 0:
            indices = np.flatnonzero(num_alternatives == count)
            asked = logits[torch.from_numpy(indices).to(logits.device)]
            tasks.append(LogprobTask(asked, indices, int(count)))
    return tasks


def describe_tokens(
    to_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    token_ids: torch.Tensor,
    num_alternatives: int,
) -> list[TokenLogprobs]:
    """Log-probabilities of `token_ids` [n], each under its row of `hidden` [n, hidden_size], some rows at a time."""
    parts = []
    for start in range(0, len(token_ids), _LOGIT_ROWS):
        logits = to_logits(hidden[start : start + _LOGIT_ROWS])
        task = LogprobTask(logits, np.arange(len(logits)), num_alternatives)
        parts.append(task.finish(token_ids[start : start + _LOGIT_ROWS]))
    return parts
