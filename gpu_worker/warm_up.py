"""One full step at the largest shapes: what is allocated, compiled or read for the first time is so before a request.

On a GPU its peak of memory is what the KV cache has to leave free.
"""

import numpy as np

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan, StepDone
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.results import pack_ids
from gpu_worker.runner import Runner, RunnerCounters

# Every part of sampling that needs memory of its own.
_SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, logprobs=4)


class WarmUpError(RuntimeError):
    """The model does not run here. The message says where it failed."""


def warm_up(runner: Runner, limits: BatchLimits, worker_epoch: int) -> None:
    """Runs a step of as many rows and tokens as fit, then forgets it. Raises WarmUpError."""
    result = runner.execute(largest_plan(limits, worker_epoch))
    runner.forget()
    # A step that no scheduler has asked for.
    runner.counters = RunnerCounters()
    if not isinstance(result, StepDone):
        raise WarmUpError(f"the largest step failed: {getattr(result, 'message', result)}")


def largest_plan(limits: BatchLimits, worker_epoch: int) -> Plan:
    """Chunks as long as they can be, and a decode in every row that is left."""
    longest = min(limits.max_model_len, limits.num_blocks * limits.block_size)
    rows, chunks, left = [], [], limits.max_num_batched_tokens
    num_rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    for row in range(num_rows):
        # Every row after this one gets a token at least.
        count = max(1, min(longest, left - (num_rows - row - 1)))
        left -= count
        rows.append(_row(row, count, limits))
        if count > 1:
            chunks += [row, count]
    decodes = range(len(chunks) // 2, num_rows)
    return Plan(worker_epoch, 1, True, boarded=tuple(rows), decode=_pack(*decodes), chunks=_pack(*chunks))


def blocks_for_warm_up(max_num_batched_tokens: int, block_size: int, max_model_len: int) -> int:
    """Blocks that the longest chunk of the largest step needs; rows of a warm-up may share them."""
    return -(-min(max_num_batched_tokens, max_model_len) // block_size)


def _row(row: int, num_tokens: int, limits: BatchLimits) -> BoardedRow:
    tokens = np.arange(num_tokens) % limits.vocab_size
    num_blocks = -(-num_tokens // limits.block_size)
    blocks = np.arange(num_blocks) if num_tokens > 1 else np.array([row % limits.num_blocks])
    return BoardedRow(row, pack_ids(tokens), num_tokens, 0, pack_ids(blocks), 0, _SAMPLING)


def _pack(*values: int) -> bytes:
    return pack_ids(np.array(values, np.int64))
