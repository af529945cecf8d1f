"""Sampling on the device: every row of a step by its own parameters, with no look at any value by the host."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_tensor
from gpu_worker.kernels.triton.device.filters import thresholds_kernel
from gpu_worker.kernels.triton.device.logprobs import logprobs_kernel
from gpu_worker.kernels.triton.device.sampling import adjust_logits_kernel, choose_kernel, finish_kernel
from gpu_worker.kernels.triton.row_state import MAX_BIAS, NUM_FLOATS, NUM_INTEGERS, RowState
from gpu_worker.kernels.triton.shapes import next_power_of_2

_FLOAT, _INT = (torch.float32,), (torch.int32,)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What a step samples, and the room it needs on the way. n rows, V vocabulary, k alternatives."""

    adjusted: torch.Tensor
    """[n, V] float32; only rows with bias, masks or penalties are written."""
    row_max: torch.Tensor
    """[n] float32: largest logit of rows with a temperature."""
    threshold: torch.Tensor
    """[n] float32: smallest scaled logit that may be taken."""
    best: torch.Tensor
    """[n, parts] float32, with `best_token` int32."""
    best_token: torch.Tensor
    token_ids: torch.Tensor
    """[n] int32: the tokens; -1: the logits hold NaN or no finite maximum; -2: padding."""
    lse: torch.Tensor
    """[n] float32: log of the sum of exp of the raw logits, for rows that ask for log-probabilities."""
    logprobs: torch.Tensor
    """[n] float32: that of the token, for rows that ask."""
    top_ids: torch.Tensor
    """[n, k] int32: alternatives, best first; as many as the row asks for."""
    top_logprobs: torch.Tensor
    """[n, k] float32."""

    @classmethod
    def make(cls, num_rows: int, vocab_size: int, num_alternatives: int, device: torch.device) -> "SampledRows":
        """Uninitialised. `num_alternatives`: most that a row may ask for."""

        def floats(*shape: int) -> torch.Tensor:
            return torch.empty((num_rows, *shape), dtype=torch.float32, device=device)

        def integers(*shape: int) -> torch.Tensor:
            return torch.empty((num_rows, *shape), dtype=torch.int32, device=device)

        parts, most = num_parts(vocab_size), max(1, num_alternatives)
        return cls(
            floats(vocab_size), floats(), floats(), floats(parts), integers(parts), integers(), floats(), floats(),
            integers(most), floats(most),
        )  # fmt: skip


def choose_block(vocab_size: int) -> int:
    """Tokens that one program of the last pass looks at."""
    return min(8192, next_power_of_2(vocab_size))


def num_parts(vocab_size: int) -> int:
    """Programs a row of the last pass."""
    return -(-vocab_size // choose_block(vocab_size))


def sample(logits: torch.Tensor, rows: torch.Tensor, state: RowState, found: SampledRows) -> None:
    """Samples one token a row and makes it the row's next known one.

    `logits` [n, V] float32, kept as they are; `rows` [n] int32, negative: padding. Parameters, penalties and the
    position in the output come from `state`, which advances: the token enters the row's ids and counts. Fills
    `found`. Semantics and noise are those of `gpu_worker.sampling`. Raises KernelArgumentError.
    """
    _check(logits, rows, state, found)
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    sizes = {"VOCAB": vocab_size, "INTEGERS": NUM_INTEGERS}
    most = found.top_ids.shape[1]
    pass_block = min(4096, next_power_of_2(vocab_size))
    logprobs_kernel[(num_rows,)](
        logits, rows, state.integers, found.lse, found.top_ids, found.top_logprobs,
        MOST=most, BLOCK=min(2048, pass_block), num_warps=8, **sizes,
    )  # fmt: skip
    adjust_block = min(2048, pass_block)
    adjust_logits_kernel[(num_rows, -(-vocab_size // adjust_block))](
        logits, found.adjusted, rows, state.integers, state.floats, state.counts, state.ends, state.bias_ids,
        state.bias_values, FLOATS=NUM_FLOATS, ENDS=state.ends.shape[1], BIASES=MAX_BIAS, BLOCK=adjust_block,
        num_warps=8, **sizes,
    )  # fmt: skip
    thresholds_kernel[(num_rows,)](
        logits, found.adjusted, rows, state.integers, state.floats, found.row_max, found.threshold,
        FLOATS=NUM_FLOATS, BLOCK=min(1024, pass_block), num_warps=16, **sizes,
    )  # fmt: skip
    parts = num_parts(vocab_size)
    choose_kernel[(num_rows, parts)](
        logits, found.adjusted, rows, state.integers, state.floats, found.row_max, found.threshold, found.best,
        found.best_token, FLOATS=NUM_FLOATS, BLOCK=choose_block(vocab_size), PARTS=parts, num_warps=8, **sizes,
    )  # fmt: skip
    finish_kernel[(num_rows,)](
        logits, rows, state.integers, state.tokens, state.counts, found.best, found.best_token, found.lse,
        found.token_ids, found.logprobs, TOKENS=state.tokens.shape[1], PARTS=parts,
        PARTS_PAD=next_power_of_2(parts), num_warps=1, **sizes,
    )  # fmt: skip


def _check(logits: torch.Tensor, rows: torch.Tensor, state: RowState, found: SampledRows) -> None:
    num_rows, vocab_size = logits.shape[0], state.shape.vocab_size
    check_tensor("logits", logits, (num_rows, vocab_size), _FLOAT, state.device)
    check_tensor("rows", rows, (num_rows,), _INT, state.device)
    check_tensor("adjusted", found.adjusted, (num_rows, vocab_size), _FLOAT, state.device)
    for name, tensor in (("row_max", found.row_max), ("threshold", found.threshold), ("lse", found.lse)):
        check_tensor(name, tensor, (num_rows,), _FLOAT, state.device)
    check_tensor("best", found.best, (num_rows, num_parts(vocab_size)), _FLOAT, state.device)
    check_tensor("best_token", found.best_token, (num_rows, num_parts(vocab_size)), _INT, state.device)
    check_tensor("token_ids", found.token_ids, (num_rows,), _INT, state.device)
    check_tensor("top_ids", found.top_ids, (num_rows, None), _INT, state.device)
    check_tensor("top_logprobs", found.top_logprobs, found.top_ids.shape, _FLOAT, state.device)
