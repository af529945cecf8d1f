"""What the prefix index is told of a sequence's blocks, and what is found there for one that boards.

Prompt blocks (and those of tokens known before boarding) become findable when a plan is to fill them, so that a burst
with one system prompt shares; blocks of newly sampled tokens when they are confirmed.
"""

from scheduler_svc.core.prefix import HASH_BYTES
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step

_INDEXED_TOKENS = 64
"""Blocks that decoding fills become findable in portions of about so many tokens, or when their sequence leaves."""


def tokens_at_once(state: SchedulerState) -> int:
    """Tokens of a portion: whole blocks."""
    size = state.hashes.block_size
    return max(_INDEXED_TOKENS // size, 1) * size


def hash_prompt(state: SchedulerState, request: Request) -> None:
    """Hashes the prompt's full blocks, once."""
    if (
        not request.prompt_hashes
        and state.config.enable_prefix_caching
        and request.prompt_len >= state.hashes.block_size
    ):
        request.prompt_hashes = state.hashes.prompt(request)


def _know_hashes(state: SchedulerState, sequence: Sequence, last: int) -> int:
    """Sees to it that the hashes of its blocks below `last` are known, whose tokens are settled; how many are whole
    prompt."""
    request = sequence.request
    in_prompt = request.prompt_len // state.hashes.block_size
    if in_prompt and not request.prompt_hashes:
        hash_prompt(state, request)
    known = in_prompt + len(sequence.tail_hashes) // HASH_BYTES
    if last > known:
        sequence.tail_hashes += state.hashes.tail(sequence, known, last - known)
    return in_prompt


def block_hash(state: SchedulerState, sequence: Sequence, index: int) -> bytes:
    """Hash of its full block `index`, all of whose tokens are known and settled."""
    in_prompt = _know_hashes(state, sequence, index + 1)
    if index < in_prompt:
        return sequence.request.prompt_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
    at = (index - in_prompt) * HASH_BYTES
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
    in_prompt = _know_hashes(state, sequence, last)
    blocks, tail, offer = sequence.blocks, sequence.tail_hashes, state.pool.index
    while index < min(in_prompt, last):
        offer(blocks[index], block_hash(state, sequence, index))
        index += 1
    for at in range(index, last):
        start = (at - in_prompt) * HASH_BYTES
        offer(blocks[at], tail[start : start + HASH_BYTES])
    sequence.num_indexed = last
