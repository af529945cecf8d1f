"""Plans on the device: one launch puts an upload's words in their places, one gathers what a step computes."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.plan import (
    apply_plan_kernel,
    clear_counts_kernel,
    count_tokens_kernel,
    gather_step_kernel,
)
from gpu_worker.kernels.triton.row_state import NUM_INTEGERS, NUM_KNOWN, PROMPT_LEN, RowState

_INT32, _INT64 = (torch.int32,), (torch.int64,)
_WORDS_A_PROGRAM = 1024


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step on the device, n of them; decode rows first."""

    rows: torch.Tensor
    """[n] int32; negative: padding."""
    cu_q: torch.Tensor
    """[n + 1] int32: borders of the rows' tokens."""
    ends: torch.Tensor
    """[n] int32: position after the last token that a row computes; 0: all that it knows."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What `gather_step` fills: T tokens, n rows."""

    token_ids: torch.Tensor
    """[T] int32."""
    positions: torch.Tensor
    """[T] int64, as are `blocks` (-1: padding) and `offsets`."""
    blocks: torch.Tensor
    offsets: torch.Tensor
    kv_lens: torch.Tensor
    """[n] int32: length of each row with the step's tokens."""

    @classmethod
    def make(cls, num_tokens: int, num_rows: int, device: torch.device) -> "StepTokens":
        """Uninitialised."""
        positions, blocks, offsets = (torch.empty(num_tokens, dtype=torch.int64, device=device) for _ in range(3))
        token_ids = torch.empty(num_tokens, dtype=torch.int32, device=device)
        return cls(token_ids, positions, blocks, offsets, torch.empty(num_rows, dtype=torch.int32, device=device))


def apply_plan(upload: torch.Tensor, state: RowState, num_runs: int, longest: int) -> None:
    """Copies runs of words into the arena of row state, in one launch.

    `upload` int32 [words] on the device: first (target, source, length) of each run, sources counted from its start.
    Runs must not overlap; that they lie inside arena and upload is up to whoever packed them. `longest`: words of
    the longest run. Raises KernelArgumentError.
    """
    check_tensor("upload", upload, (None,), _INT32, state.device)
    check_that(3 * num_runs <= upload.shape[0], f"{num_runs} runs do not fit {upload.shape[0]} words")
    if num_runs and longest:
        grid = (num_runs, -(-longest // _WORDS_A_PROGRAM))
        apply_plan_kernel[grid](upload, state.arena, BLOCK=_WORDS_A_PROGRAM, num_warps=4)


def apply_plan_reference(upload: torch.Tensor, state: RowState, num_runs: int) -> None:
    """The same in plain torch."""
    for target, source, length in upload[: 3 * num_runs].view(-1, 3).tolist():
        state.arena[target : target + length] = upload[source : source + length]


def gather_step(step: StepRows, state: RowState, block_size: int, longest: int, tokens: StepTokens) -> None:
    """Fills `tokens` from row state. `longest`: most tokens of a row, known to the host. Raises KernelArgumentError."""
    num_rows = step.rows.shape[0]
    _check_step(step, tokens, state.device)
    # Two sizes only: each is compiled when it is first met, and both are met before a request.
    block = 1 if longest == 1 else _WORDS_A_PROGRAM
    gather_step_kernel[(num_rows, -(-longest // block))](
        step.rows,
        step.cu_q,
        step.ends,
        state.integers,
        state.tokens,
        state.block_tables,
        tokens.token_ids,
        tokens.positions,
        tokens.blocks,
        tokens.offsets,
        tokens.kv_lens,
        INTEGERS=NUM_INTEGERS,
        TOKENS=state.tokens.shape[1],
        TABLE=state.block_tables.shape[1],
        BLOCK_SIZE=block_size,
        BLOCK=block,
        num_warps=1 if block == 1 else 4,
    )


def _check_step(step: StepRows, tokens: StepTokens, device: torch.device) -> None:
    num_rows = step.rows.shape[0]
    check_that(num_rows > 0, "a step has no row")
    check_tensor("rows", step.rows, (num_rows,), _INT32, device)
    check_tensor("cu_q", step.cu_q, (num_rows + 1,), _INT32, device)
    check_tensor("ends", step.ends, (num_rows,), _INT32, device)
    num_tokens = tokens.token_ids.shape[0]
    check_tensor("token_ids", tokens.token_ids, (num_tokens,), _INT32, device)
    for name, tensor in (("positions", tokens.positions), ("blocks", tokens.blocks), ("offsets", tokens.offsets)):
        check_tensor(name, tensor, (num_tokens,), _INT64, device)
    check_tensor("kv_lens", tokens.kv_lens, (num_rows,), _INT32, device)


def gather_step_reference(step: StepRows, state: RowState, block_size: int, tokens: StepTokens) -> None:
    """The same in plain torch."""
    bounds = step.cu_q.tolist()
    for entry, (row, end) in enumerate(zip(step.rows.tolist(), step.ends.tolist(), strict=True)):
        span = slice(bounds[entry], bounds[entry + 1])
        if row < 0:
            tokens.kv_lens[entry] = tokens.token_ids[span] = tokens.positions[span] = tokens.offsets[span] = 0
            tokens.blocks[span] = -1
            continue
        last = end or int(state.integers[row, NUM_KNOWN])
        positions = torch.arange(last - (span.stop - span.start), last)
        tokens.kv_lens[entry] = last
        tokens.token_ids[span] = state.tokens[row, positions]
        tokens.positions[span] = positions
        tokens.blocks[span] = state.block_tables[row, positions // block_size].long()
        tokens.offsets[span] = positions % block_size


def count_tokens(rows: torch.Tensor, state: RowState, longest: int) -> None:
    """Counts the tokens of `rows` ([n] int32) from scratch, for their penalties. `longest`: most tokens of a row.

    Raises KernelArgumentError.
    """
    check_tensor("rows", rows, (None,), _INT32, state.device)
    num_rows, vocab_size = rows.shape[0], state.shape.vocab_size
    if not num_rows:
        return
    block = 4096
    clear_counts_kernel[(num_rows, -(-vocab_size // block))](
        rows, state.counts, VOCAB=vocab_size, BLOCK=block, num_warps=4
    )
    count_tokens_kernel[(num_rows, -(-longest // _WORDS_A_PROGRAM))](
        rows,
        state.integers,
        state.tokens,
        state.counts,
        INTEGERS=NUM_INTEGERS,
        TOKENS=state.tokens.shape[1],
        VOCAB=vocab_size,
        BLOCK=_WORDS_A_PROGRAM,
        num_warps=4,
    )


def count_tokens_reference(rows: torch.Tensor, state: RowState) -> None:
    """The same in plain torch."""
    for row in rows.tolist():
        known, prompt_len = int(state.integers[row, NUM_KNOWN]), int(state.integers[row, PROMPT_LEN])
        prompt, output = state.tokens[row, :prompt_len].long(), state.tokens[row, prompt_len:known].long()
        counts = torch.bincount(output, minlength=state.shape.vocab_size).int()
        counts[prompt] |= torch.iinfo(torch.int32).min
        state.counts[row] = counts
