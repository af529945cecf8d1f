"""Keeping what a sequence that gives way has computed, in a bounded pool of blocks on the host.

A plan copies out before it computes, after the plans before it have run: what those compute is in the copy. So the copy
holds every token scheduled when the sequence gave way, and is void when one of those plans, or the plan itself, is.
Chosen for each victim by what is cheaper: copying twice, or computing again.
"""

from array import array

from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step


def swap_out(state: SchedulerState, sequence: Sequence) -> bool:
    """Plans the copy of a running sequence's blocks to the host; False when it is to be recomputed. Moves no state."""
    step, num_tokens = state.draft, state.batch.num_scheduled(sequence)
    num_blocks = state.num_blocks_for(num_tokens)
    if step is None or num_tokens == 0 or num_blocks > state.host_pool.num_free:
        return False
    if not _is_worth_it(state, num_tokens, num_blocks):
        return False
    host_blocks = array("I", state.host_pool.take(num_blocks))
    for block, host_block in zip(sequence.blocks, host_blocks, strict=False):
        step.swap_out.extend((block, host_block))
    sequence.host_blocks = host_blocks
    sequence.swapped_tokens = num_tokens
    sequence.swapped_step = step.number
    sequence.num_swaps += 1
    return True


def _is_worth_it(state: SchedulerState, num_tokens: int, num_blocks: int) -> bool:
    match state.config.preemption:
        case "recompute":
            return False
        case "swap":
            return True
        case "auto":
            costs = state.cost_model.costs
            return costs is not None and 2 * num_blocks * state.swap_cost.block_ns < num_tokens * costs.prefill_token


def swap_in(sequence: Sequence, step: Step, blocks: "array[int]", start: int, count: int) -> None:
    """Plans the copy of host blocks ``[start, start + count)`` back into the blocks of its new table."""
    assert sequence.host_blocks is not None
    for index in range(start, start + count):
        step.swap_in.extend((sequence.host_blocks[index], blocks[index]))


def drop_copy(state: SchedulerState, sequence: Sequence, step: Step | None = None) -> None:
    """The host copy is not needed any more; where `step` copies back, its blocks are free once that plan is made."""
    if sequence.host_blocks is None:
        return
    if step is None:
        state.host_pool.release(sequence.host_blocks)
    else:
        step.released_host_blocks.extend(sequence.host_blocks)
    sequence.host_blocks = None
    sequence.swapped_tokens = 0


def drop_copies(state: SchedulerState, since: int) -> None:
    """Copies made by plans from step `since` on hold nothing: their sequences are recomputed."""
    for sequence in state.queue:
        if sequence.state is SequenceState.SWAPPED and sequence.swapped_step >= since:
            drop_copy(state, sequence)
            sequence.move(SequenceState.PREEMPTED)
