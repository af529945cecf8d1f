"""How many tokens of a gap a step closes, and what the step remembers of it."""

from scheduler_svc.core import prefix_use
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Chunk, Step


def chunk_size(state: SchedulerState, gap: int, budget: int) -> int:
    """Tokens of a gap that fit into what is left of a step's budget; 0 when it has to wait for another step.

    Without chunked prefill a gap is closed whole, unless no step at all could hold it.
    """
    config = state.config
    if not config.enable_chunked_prefill:
        if gap <= budget:
            return gap
        is_larger_than_any_step = gap > state.max_num_batched_tokens
        return budget if is_larger_than_any_step and budget == state.max_num_batched_tokens else 0
    threshold = config.long_prefill_token_threshold
    return min(gap, budget, threshold) if threshold else min(gap, budget)


def add_chunk(state: SchedulerState, step: Step, sequence: Sequence, count: int) -> None:
    """The sequence computes `count` more of its known tokens in this step, and samples when that is all of them."""
    assert sequence.row is not None
    step.chunks.append(Chunk(sequence, sequence.row, count))
    sequence.scheduled += count
    sequence.last_step = step.number
    prefix_use.index_planned(state, sequence, step)
    if sequence.scheduled == sequence.num_known:
        step.samplers.append(sequence)
        if len(sequence.outputs) + 1 >= sequence.request.output_limit:
            state.batch.end_at(sequence, step.number + 1)
