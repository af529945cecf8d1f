"""What the prefix index is told of a sequence's blocks, and what is found there for one that boards.

Prompt blocks (and those of tokens known before boarding) become findable when a plan is to fill them, so that a burst
with one system prompt shares; blocks of newly sampled tokens when they are confirmed.
"""

from scheduler_svc.core.prefix import HASH_BYTES
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step


def hash_prompt(state: SchedulerState, request: Request) -> None:
    """Hashes the prompt's full blocks, once."""
    if (
        not request.prompt_hashes
        and state.config.enable_prefix_caching
        and request.prompt_len >= state.hashes.block_size
    ):
        request.prompt_hashes = state.hashes.prompt(request)


def block_hash(state: SchedulerState, sequence: Sequence, index: int) -> bytes:
    """Hash of its full block `index`, all of whose tokens are known and settled."""
    request = sequence.request
    in_prompt = request.prompt_len // state.hashes.block_size
    if in_prompt and not request.prompt_hashes:
        hash_prompt(state, request)
    if index < in_prompt:
        return request.prompt_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
    at = (index - in_prompt) * HASH_BYTES
    num_bytes = len(sequence.tail_hashes)
    while num_bytes <= at:
        value = state.hashes.tail(sequence, in_prompt + num_bytes // HASH_BYTES)
        sequence.tail_hashes += value
        if num_bytes == at:
            return value
        num_bytes += HASH_BYTES
    return sequence.tail_hashes[at : at + HASH_BYTES]


def find_blocks(state: SchedulerState, sequence: Sequence) -> list[int]:
    """Blocks found for its leading tokens; at least one token is left to compute. Mutates no count."""
    if not state.config.enable_prefix_caching or sequence.request.wants_prompt_logprobs:
        return []
    found: list[int] = []
    for index in range((sequence.num_known - 1) // state.hashes.block_size):
        block = state.pool.find(block_hash(state, sequence, index))
        if block is None:
            break
        found.append(block)
    return found


def index_planned(state: SchedulerState, sequence: Sequence, step: Step) -> None:
    """Makes the blocks findable that plans up to `step` fill with tokens known when planned."""
    if not state.config.enable_prefix_caching:
        return
    for index in range(sequence.num_indexed, sequence.scheduled // state.hashes.block_size):
        block = sequence.blocks[index]
        if state.pool.index(block, block_hash(state, sequence, index)):
            step.indexed.append(block)
        sequence.num_indexed = index + 1


def index_confirmed(state: SchedulerState, sequence: Sequence) -> None:
    """Makes its full blocks findable whose tokens are computed and confirmed. It must be settled."""
    index, last = sequence.num_indexed, sequence.computed // state.hashes.block_size
    if index >= last or not state.config.enable_prefix_caching:
        return
    while index < last:
        state.pool.index(sequence.blocks[index], block_hash(state, sequence, index))
        index += 1
    sequence.num_indexed = index
