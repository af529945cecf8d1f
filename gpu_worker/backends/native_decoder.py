"""A `CpuDecoder` that is called again and again with the same tensors: what the calls have in common is kept.

A step streams all weights through the caches, so that Python after it runs from cold memory: each line costs several
times what it does in a loop of its own. On a 2-core Xeon the wrapper around one decode took 0.8 ms of 17.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError, address
from gpu_worker.kernels.cpu.attention import row_bounds
from gpu_worker.kernels.cpu.decoder import CpuDecoder
from gpu_worker.kernels.cpu.greedy import greedy_rows
from gpu_worker.kernels.cpu.library import Step
from gpu_worker.model.decoder import LayerPages, StepInput


class NativeDecoder(CpuDecoder):
    """Same results; logits, like hidden states, are good until the next call."""

    _prepared: StepInput | None = None
    _call: Step
    _kv_lens: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]"
    _result: torch.Tensor
    _logits: torch.Tensor | None = None
    _token_ids: "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None" = None

    def forward(self, step: StepInput, pages: Sequence[LayerPages]) -> torch.Tensor:
        """As `CpuDecoder.forward`. The object of the last call may come again, its tensors changed in place.

        Of lengths, those of decode rows may have changed then.
        """
        self._forward(step, pages)
        return self._result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `CpuDecoder.logits`, in memory that the next call takes again."""
        num_rows = len(hidden)
        logits = self._room_for_logits(num_rows)
        rows = address(hidden, "hidden", (num_rows, self.config.hidden_size), torch.float32)
        self._library.decoder_logits(self._decoder, self._team.pool, rows, num_rows, logits.data_ptr())
        return logits[:num_rows]

    def decode_greedily(
        self, step: StepInput, pages: Sequence[LayerPages]
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """`forward`, `logits` and `greedy` of a step of decodes alone, with no Python between them that would run cold.

        Token ids [T], good until the next call. Raises as `forward` does.
        """
        num_rows, vocab_size = len(step.token_ids), self.config.vocab_size
        logits = self._room_for_logits(num_rows)
        if self._token_ids is None:
            self._token_ids = np.empty(self._limits.max_num_seqs, np.int64)
        library, pool, pointer, found = self._library, self._team.pool, logits.data_ptr(), self._token_ids
        hidden, out = self._hidden.data_ptr(), found.ctypes.data
        self._forward(step, pages)
        library.decoder_logits(self._decoder, pool, hidden, num_rows, pointer)
        library.greedy(pool, pointer, num_rows, vocab_size, out)
        return found[:num_rows]

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """As `gpu_worker.sampling.choose.greedy_rows`, on this decoder's threads."""
        return greedy_rows(self._library, self._team, logits)

    def _forward(self, step: StepInput, pages: Sequence[LayerPages]) -> None:
        if step is not self._prepared or pages is not self._pages:
            self._prepare(step, pages)
        else:
            np.copyto(self._kv_lens[: step.attention.num_decodes], step.attention.decode_kv_lens, casting="unsafe")
        if self._library.decoder_forward(self._decoder, self._team.pool, ctypes.byref(self._call)):
            raise MemoryError("attention found no memory for its scratch space")

    def _room_for_logits(self, num_rows: int) -> torch.Tensor:
        if self._logits is None or len(self._logits) < num_rows:
            self._logits = torch.empty((num_rows, self.config.vocab_size))
        return self._logits

    def _prepare(self, step: StepInput, pages: Sequence[LayerPages]) -> None:
        """Checks the tensors and notes where they are. Raises KernelArgumentError."""
        self._prepared = None
        if pages is not self._pages:
            self._take_pages(pages)
        num_tokens = len(step.token_ids)
        if num_tokens > len(self._hidden):
            raise KernelArgumentError(f"a step of {num_tokens} tokens; buffers are for {len(self._hidden)}")
        self._starts, self._kv_lens = row_bounds(step.attention)
        lens, tables = self._kv_lens, step.attention.block_tables
        if self._starts[-1] != num_tokens or (len(lens) and lens.max() > tables.shape[1] * self._limits.block_size):
            raise KernelArgumentError(f"{num_tokens} tokens and tables {list(tables.shape)} do not fit the layout")
        self._call = Step(
            num_tokens=num_tokens,
            ids=address(step.token_ids, "token_ids", (num_tokens,), torch.int64),
            positions=address(step.positions, "positions", (num_tokens,), torch.int64),
            blocks=address(step.blocks, "blocks", (num_tokens,), torch.int64),
            offsets=address(step.offsets, "offsets", (num_tokens,), torch.int64),
            block_tables=address(tables, "block_tables", (len(lens), None), torch.int32, row_stride=True),
            table_stride=tables.stride(0),
            query_starts=self._starts.ctypes.data,
            kv_lens=lens.ctypes.data,
            num_rows=len(lens),
            k_pages=ctypes.addressof(self._page_addresses[0]),
            v_pages=ctypes.addressof(self._page_addresses[1]),
            hidden=self._hidden.data_ptr(),
        )
        self._result = self._hidden[:num_tokens]
        self._prepared = step
