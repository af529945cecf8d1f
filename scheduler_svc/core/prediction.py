"""When a request would get its first token, told at the door by rolling the queue forward.

In aggregate, not request by request, so that it costs the same with ten or ten thousand waiting: the prompt tokens
ahead at the rate at which steps take them, the seats and blocks that are missing at the rate at which riders leave.
"""

from scheduler_svc.core import pace
from scheduler_svc.core.cost_model import StepCosts, StepShape
from scheduler_svc.core.forecast import Foretold
from scheduler_svc.core.state import SchedulerState


def foretell(state: SchedulerState, num_ahead: int, num_uncached: int, now: int) -> Foretold | None:
    """The first token of a request with `num_ahead` waiting before it; None while nothing is known.

    Rolls the queue forward in three ways and takes the longest: through the prompt tokens ahead, a step's budget at a
    time; until enough riders have left for a seat; until they have left for the blocks.
    """
    costs, batch, queue = state.cost_model.costs, state.batch, state.queue
    if costs is None or not state.is_worker_up:
        return None
    tokens_ahead = queue.num_tokens * num_ahead // max(len(queue), 1)
    tokens_ahead += sum(one.num_known - one.scheduled for one in batch.catching_up)
    num_decodes, num_kv_tokens = batch.num_decodes, batch.num_column_tokens
    rate = max(pace.prefill_budget(state, state.max_num_batched_tokens - num_decodes), 1)

    def step_ns(num_prefill_tokens: int) -> float:
        assert costs is not None
        return costs.step_ns(StepShape(num_decodes, num_prefill_tokens, num_kv_tokens))

    num_full, num_rest = divmod(tokens_ahead + num_uncached, rate)
    own_ns = num_full * step_ns(rate) + (step_ns(num_rest) if num_rest else 0.0)
    leaving = num_decodes / max(state.forecast.mean_output, 1.0)
    missing = max(_missing_seats(state, num_ahead), _missing_memory(state, tokens_ahead + num_uncached))
    is_crowded = missing > 0 and leaving > 0
    if is_crowded:
        full, rest = divmod(num_uncached, rate)
        waiting_ns = missing / leaving * step_ns(int(leaving * state.forecast.mean_prompt))
        own_ns = max(own_ns, waiting_ns + full * step_ns(rate) + (step_ns(rest) if rest else 0.0))
    return state.forecast.correct(_in_flight_ns(state, costs, now) + own_ns, is_crowded=is_crowded)


def _in_flight_ns(state: SchedulerState, costs: StepCosts, now: int) -> float:
    """What is left of the steps that are on their way."""
    total = sum(costs.step_ns(step.shape) for step in state.in_flight)
    if not state.in_flight:
        return 0.0
    begun = max(state.last_result_ns, state.in_flight[0].planned_ns)
    return total - min(float(now - begun), costs.step_ns(state.in_flight[0].shape))


def _missing_seats(state: SchedulerState, num_ahead: int) -> float:
    """Riders that have to leave before there is a seat for it."""
    return float(max(num_ahead + 1 - (state.max_num_seqs - len(state.batch.rows)), 0))


def _missing_memory(state: SchedulerState, num_tokens: int) -> float:
    """Riders that have to leave before there are blocks for all up to it."""
    num_riders = len(state.batch.rows)
    short = state.num_blocks_for(num_tokens) + state.watermark - state.pool.num_obtainable
    if short <= 0 or num_riders == 0:
        return 0.0
    return short * num_riders / max(state.pool.num_used, 1)
