"""One token for each row that samples: groups rows by what they need and runs only that."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.sampling.choose import greedy_rows, sample_rows
from gpu_worker.sampling.host import HostSampler
from gpu_worker.sampling.logprobs import TokenLogprobs, logprob_tasks
from gpu_worker.sampling.penalties import PenaltyCounters
from gpu_worker.sampling.rows import Needs, SamplingRows

GreedyRows = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step sampled, in the order of its rows."""

    token_ids: torch.Tensor
    """[n] int64 on the device; `NO_TOKEN` (-1) where a row's logits hold NaN."""
    logprobs: list[TokenLogprobs]


class Sampler:
    """Sampling for the rows of one batch."""

    def __init__(self, rows: SamplingRows, counters: PenaltyCounters, greedy: GreedyRows = greedy_rows) -> None:
        """`greedy`: another implementation of `greedy_rows`."""
        self._rows = rows
        self._greedy = greedy
        self._counters = counters
        self._host: HostSampler | None = None

    def sample(self, logits: torch.Tensor, rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Sampled:
        """Token ids for float32 logits [n, V] of `rows`; overwrites the logits and advances penalty counters.

        `offsets` [n]: how many output tokens each row has so far.
        """
        needs = self._rows.needs[rows]
        if not needs.any():
            return Sampled(self._greedy(logits), [])
        asked = np.where(needs & Needs.LOGPROBS, self._rows.num_logprobs[rows], -1)
        tasks = logprob_tasks(logits, asked)
        self._mask_ends(logits, rows, offsets, needs)
        self._add_bias(logits, rows, needs)
        self._penalise(logits, rows, needs)
        token_ids = self._choose(logits, rows, offsets, needs)
        self._count(rows, token_ids, needs)
        return Sampled(token_ids, [task.finish(token_ids.clamp(min=0)) for task in tasks])

    def _mask_ends(
        self,
        logits: torch.Tensor,
        rows: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        needs: npt.NDArray[np.uint8],
    ) -> None:
        wanting = np.flatnonzero((needs & Needs.MIN_TOKENS) != 0)
        wanting = wanting[offsets[wanting] < self._rows.min_tokens[rows[wanting]]]
        if not len(wanting):
            return
        end_ids = self._rows.end_ids[rows[wanting]]
        index, column = np.nonzero(end_ids >= 0)
        masked_rows, columns = wanting[index], end_ids[index, column]
        logits[self._upload(logits, masked_rows), self._upload(logits, columns)] = float("-inf")

    def _add_bias(self, logits: torch.Tensor, rows: npt.NDArray[np.int64], needs: npt.NDArray[np.uint8]) -> None:
        biased = np.flatnonzero((needs & Needs.BIAS) != 0)
        if len(biased):
            where = self._upload(logits, biased)
            ids = torch.from_numpy(self._rows.bias_ids[rows[biased]]).to(logits.device)
            values = torch.from_numpy(self._rows.bias_values[rows[biased]]).to(logits.device)
            logits[where] = logits[where].scatter_add_(1, ids, values)

    def _penalise(self, logits: torch.Tensor, rows: npt.NDArray[np.int64], needs: npt.NDArray[np.uint8]) -> None:
        penalised = np.flatnonzero((needs & Needs.PENALTIES) != 0)
        if len(penalised):
            where = self._upload(logits, penalised)
            params = self._rows.device_columns(self._upload(logits, rows[penalised]))
            logits[where] = self._counters.apply(logits[where], rows[penalised], params)

    def _choose(
        self,
        logits: torch.Tensor,
        rows: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        needs: npt.NDArray[np.uint8],
    ) -> torch.Tensor:
        kind = needs & (Needs.RANDOM | Needs.FILTER)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for wanted in np.unique(kind):
            members = np.flatnonzero(kind == wanted)
            where = self._upload(logits, members)
            group = logits[where] if len(members) < len(rows) else logits
            if not wanted & Needs.RANDOM:
                token_ids[where] = self._greedy(group)
                continue
            is_filtered = bool(wanted & Needs.FILTER)
            token_ids[where] = self._sample_group(group, rows[members], offsets[members], filtered=is_filtered)
        return token_ids

    def _sample_group(
        self, logits: torch.Tensor, rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], *, filtered: bool
    ) -> torch.Tensor:
        if logits.device.type != "cpu":
            params = self._rows.device_columns(self._upload(logits, rows))
            return sample_rows(logits, params, self._upload(logits, offsets.astype(np.int32)), filtered=filtered)
        if self._host is None:
            self._host = HostSampler(logits.shape[1])
        sampled = self._host.sample(logits.numpy(), self._rows.host_columns(rows), offsets, filtered=filtered)
        return torch.from_numpy(sampled)

    def _count(self, rows: npt.NDArray[np.int64], token_ids: torch.Tensor, needs: npt.NDArray[np.uint8]) -> None:
        counted = np.flatnonzero((needs & Needs.PENALTIES) != 0)
        if len(counted):
            self._counters.advance(rows[counted], token_ids[self._upload(token_ids, counted)].clamp(min=0))

    @staticmethod
    def _upload(beside: torch.Tensor, values: npt.NDArray[np.integer]) -> torch.Tensor:
        return torch.from_numpy(values).to(beside.device)
