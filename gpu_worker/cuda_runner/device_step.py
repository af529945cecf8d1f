"""One step as work on the device: rows gathered, the model run, tokens sampled, over tensors that stay in place."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch

from gpu_worker.batch.columns import PlanColumns
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.cuda_runner.graphs import Body
from gpu_worker.cuda_runner.step_area import PADDING_ROW, StepArea, StepAreaShape
from gpu_worker.kernels.triton.layout import DeviceAttentionLayout
from gpu_worker.kernels.triton.plan import StepRows, StepTokens, count_tokens, gather_step
from gpu_worker.kernels.triton.row_state import RowState, RowStateShape
from gpu_worker.kernels.triton.sampling import SampledRows, sample
from gpu_worker.kv_cache import KvCache
from gpu_worker.model.decoder import Decoder, StepInput

MAX_ENDS = 128
"""Ids that end a row: its stop ids and EOS."""
_NO_LENS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of one step: T tokens, n rows."""

    num_tokens: int
    num_rows: int
    num_chunk_rows: int
    longest: int
    """Most tokens of a row."""
    max_kv_len: int


class DeviceStep:
    """Row state and everything that a step writes on its way; one step at a time is on the device's stream."""

    def __init__(self, decoder: Decoder, cache: KvCache, limits: BatchLimits, max_logprobs: int) -> None:
        """Allocates for the largest step."""
        self._decoder = decoder
        self._cache = cache
        self._limits = limits
        self._device = decoder.device
        area = StepAreaShape(limits.max_num_seqs, limits.num_blocks)
        shape = RowStateShape(
            limits.max_num_seqs,
            limits.max_model_len + 1,
            limits.max_blocks_per_row,
            MAX_ENDS,
            limits.vocab_size,
            area.num_words,
        )
        self.state = RowState(shape, self._device)
        self.area = StepArea(area, self.state)
        self._tokens = StepTokens.make(limits.max_num_batched_tokens, limits.max_num_seqs, self._device)
        self._found = SampledRows.make(limits.max_num_seqs, limits.vocab_size, max_logprobs, self._device)
        self._last_found = self._found
        self._each_one = torch.arange(limits.max_num_seqs + 1, dtype=torch.int32, device=self._device)
        self._no_ends = torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=self._device)

    def decode_body(self, bucket: int) -> Body:
        """The work of a decode step of `bucket` rows, taken from the area; with padding rows only it does nothing."""
        self.area.rows.fill_(PADDING_ROW)
        shape = _Shape(bucket, bucket, 0, 1, self._limits.max_model_len)
        rows = StepRows(self.area.rows[:bucket], self._each_one[: bucket + 1], self._no_ends[:bucket])

        def run() -> None:
            hidden = self._forward(rows, shape)
            found = _first_rows(self._found, bucket)
            sample(self._decoder.logits(hidden), rows.rows, self.state, found)

        return run

    def run_mixed(self, columns: PlanColumns, num_sampling: int, max_kv_len: int, num_logprobs: int) -> torch.Tensor:
        """A step of any other shape, from the area; returns hidden states [T, hidden_size]."""
        num_rows = len(columns.decode_rows) + len(columns.chunk_rows)
        longest = int(columns.chunk_tokens.max(initial=1))
        shape = _Shape(columns.num_tokens, num_rows, len(columns.chunk_rows), longest, max_kv_len)
        area = self.area
        rows = StepRows(area.rows[:num_rows], area.cu_q[: num_rows + 1], area.ends[:num_rows])
        hidden = self._forward(rows, shape)
        if num_sampling:
            self._last_found = self._room_for(num_sampling, num_logprobs)
            chosen = hidden[area.sampling_tokens[:num_sampling]]
            sample(self._decoder.logits(chosen), area.sampling_rows[:num_sampling], self.state, self._last_found)
        return hidden

    def use_graph_results(self) -> None:
        """A replayed graph has filled the results, not `run_mixed`."""
        self._last_found = self._found

    def results(self, num_rows: int, num_logprobs: int) -> torch.Tensor:
        """What the last step sampled, int32 words: [n, 1] ids, or [n, 2 + 2 k] with log-probabilities (k asked for).

        Id, its log-probability, k alternatives, their log-probabilities; floats by their bits.
        """
        found = _first_rows(self._last_found, num_rows)
        if num_logprobs < 0:
            return found.token_ids[:, None]
        bits = (found.logprobs.view(torch.int32), found.top_logprobs.view(torch.int32))
        top = slice(0, num_logprobs)
        return torch.cat((found.token_ids[:, None], bits[0][:, None], found.top_ids[:, top], bits[1][:, top]), dim=1)

    def count_tokens(self, num_rows: int, longest: int) -> None:
        """Counts tokens of the first rows of the area's list, for their penalties."""
        if num_rows:
            count_tokens(self.area.counted_rows[:num_rows], self.state, longest)

    def copy_blocks(self, count: int) -> None:
        """Copies the area's blocks."""
        if count:
            self._cache.copy_blocks(self.area.copy_sources[:count].long(), self.area.copy_destinations[:count].long())

    def timer(self) -> Callable[[], Callable[[], int]]:
        """Starts; the result stops it and gives what reads the nanoseconds between, once the device has passed both."""
        if self._device.type != "cuda":
            start = time.perf_counter_ns()

            def stop_now() -> Callable[[], int]:
                elapsed = time.perf_counter_ns() - start
                return lambda: elapsed

            return stop_now
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()

        def stop() -> Callable[[], int]:
            last.record()
            return lambda: int(first.elapsed_time(last) * 1e6)

        return stop

    def _forward(self, rows: StepRows, shape: _Shape) -> torch.Tensor:
        tokens = _first_tokens(self._tokens, shape)
        gather_step(rows, self.state, self._limits.block_size, shape.longest, tokens)
        layout = DeviceAttentionLayout(
            block_tables=self.state.block_tables,
            decode_kv_lens=_NO_LENS,
            chunks=(),
            num_decode_rows=shape.num_rows - shape.num_chunk_rows,
            num_chunk_rows=shape.num_chunk_rows,
            kv_lens=tokens.kv_lens,
            cu_q=rows.cu_q,
            row_ids=rows.rows,
            max_kv_len=shape.max_kv_len,
        )
        step = StepInput(tokens.token_ids, tokens.positions, tokens.blocks, tokens.offsets, layout)
        return self._decoder.forward(step, self._cache.pages)

    def _room_for(self, num_rows: int, num_logprobs: int) -> SampledRows:
        if num_logprobs <= self._found.top_ids.shape[1]:
            return _first_rows(self._found, num_rows)
        return SampledRows.make(num_rows, self._limits.vocab_size, num_logprobs, self._device)


def _first_tokens(tokens: StepTokens, shape: _Shape) -> StepTokens:
    count = slice(0, shape.num_tokens)
    return StepTokens(
        tokens.token_ids[count],
        tokens.positions[count],
        tokens.blocks[count],
        tokens.offsets[count],
        tokens.kv_lens[: shape.num_rows],
    )


def _first_rows(found: SampledRows, num_rows: int) -> SampledRows:
    return SampledRows(**{field.name: getattr(found, field.name)[:num_rows] for field in fields(found)})
