"""Checks of a boarded row: sizes, ids and sampling values that the device would trip over."""

import numpy as np

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow
from gpu_worker.batch.columns import Column, unpack_column
from gpu_worker.batch.limits import BatchLimits, InvalidPlanError

_MAX_ALTERNATIVES = 1024


def check_boarded(boarded: BoardedRow, limits: BatchLimits) -> tuple[Column, Column]:
    """Token ids and block table of a row that may board. Raises InvalidPlanError naming the row."""
    if not 0 <= boarded.row < limits.max_num_seqs:
        raise InvalidPlanError(f"boarded row {boarded.row} is outside the batch of {limits.max_num_seqs}")

    def refuse(what: str) -> InvalidPlanError:
        return InvalidPlanError(f"boarded row {boarded.row}: {what}", (boarded.row,))

    tokens = unpack_column("boarded tokens", boarded.tokens)
    blocks = unpack_column("boarded blocks", boarded.blocks)
    if not 1 <= len(tokens) <= limits.max_model_len:
        raise refuse(f"{len(tokens)} tokens, of {limits.max_model_len} at most")
    if tokens.max() >= limits.vocab_size:
        raise refuse(f"a token id is outside the vocabulary of {limits.vocab_size}")
    if not 1 <= boarded.prompt_len <= len(tokens):
        raise refuse(f"prompt of {boarded.prompt_len} in {len(tokens)} tokens")
    if not 0 <= boarded.computed < len(tokens):
        raise refuse(f"{boarded.computed} tokens computed of {len(tokens)}: nothing is left to compute")
    if len(blocks) > limits.max_blocks_per_row or boarded.computed > len(blocks) * limits.block_size:
        raise refuse(f"{len(blocks)} blocks for {boarded.computed} computed tokens")
    if len(blocks) and blocks.max() >= limits.num_blocks:
        raise refuse(f"a block is outside the cache of {limits.num_blocks}")
    if not 0 <= boarded.choice < 1 << 31:
        raise refuse("choice out of range")
    if fault := _find_sampling_fault(boarded.sampling, limits.vocab_size):
        raise refuse(fault)
    return tokens, blocks


def _find_sampling_fault(params: SamplingParams, vocab_size: int) -> str | None:
    # Values are float32 on the device: a larger one would be infinite there.
    largest = float(np.finfo(np.float32).max)
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    ids = (*params.stop_token_ids, *(token for token, _ in params.logit_bias))
    checks = {
        "temperature": 0 <= params.temperature <= largest,
        "top_k": params.top_k >= 0,
        "top_p": 0 <= params.top_p <= 1,
        "min_p": 0 <= params.min_p <= 1,
        "penalties": all(abs(value) <= largest for value in penalties) and np.float32(params.repetition_penalty) > 0,
        "seed": 0 <= params.seed < 1 << 64,
        "min_tokens": 0 <= params.min_tokens < 1 << 31,
        "logit_bias or stop_token_ids": all(0 <= token < vocab_size for token in ids),
        "logit_bias": all(abs(value) <= largest for _, value in params.logit_bias),
        "logprobs": _is_count(params.logprobs) and _is_count(params.prompt_logprobs),
    }
    wrong = [name for name, is_good in checks.items() if not is_good]
    return f"sampling value out of range: {', '.join(wrong)}" if wrong else None


def _is_count(value: int | None) -> bool:
    return value is None or 0 <= value <= _MAX_ALTERNATIVES
