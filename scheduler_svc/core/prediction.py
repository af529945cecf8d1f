"""When a request would get its first token, told at the door by rolling the queue forward.

In aggregate, not request by request, so that it costs the same with ten or ten thousand waiting: the prompt tokens
ahead at the rate at which steps take them, the seats and blocks that are missing at the rate at which riders leave.
"""

from math import inf

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
    missing = max(_missing_seats(state, num_ahead), _missing_memory(state, tokens_ahead + num_uncached))
    is_crowded = missing > 0 and bool(batch.rows)
    if is_crowded:
        full, rest = divmod(num_uncached, rate)
        num_steps = _steps_until_left(state, missing)
        waiting_ns = num_steps * step_ns(int(missing / num_steps * state.forecast.mean_prompt))
        own_ns = max(own_ns, waiting_ns + full * step_ns(rate) + (step_ns(rest) if rest else 0.0))
    return state.forecast.correct(_in_flight_ns(state, costs, now) + own_ns, is_crowded=is_crowded)


def _in_flight_ns(state: SchedulerState, costs: StepCosts, now: int) -> float:
    """What is left of the steps that are on their way."""
    total = sum(costs.step_ns(step.shape) for step in state.in_flight)
    if not state.in_flight:
        return 0.0
    begun = max(state.last_result_ns, state.in_flight[0].planned_ns)
    return total - min(float(now - begun), costs.step_ns(state.in_flight[0].shape))


def _steps_until_left(state: SchedulerState, num: float) -> float:
    """Steps until `num` of the riders are expected to have left, at least one.

    At the latest each leaves when its length is reached, which is known; before that, as often as choices have ended
    unforeseen of late. Riders that boarded together leave together: a mean rate would let too many in right after them.
    """
    hazard = state.forecast.unforeseen_ends
    num_riders, num_due, before = len(state.batch.rows), 0, 0
    for steps, count in state.batch.lengths_left():
        found = _steps_by_chance(num - num_due, num_riders - num_due, hazard)
        if found <= steps:
            return max(found, before, 1.0)
        num_due, before = num_due + count, steps
        if num_due >= min(num, num_riders):
            break
    if num <= num_due:
        return max(float(before), 1.0)
    return max(before + (num - num_due) * state.forecast.mean_output / max(num_riders, 1), 1.0)


def _steps_by_chance(num: float, num_riders: int, hazard: float) -> float:
    """Steps until `num` of so many have ended, each with the chance `hazard` in a step; infinite for never."""
    share = num / num_riders if num_riders > 0 else 1.0
    if share >= 1.0 or hazard <= 0.0:
        return 0.0 if share <= 0.0 else inf
    # 1 - exp(-ht) by ht / (1 + ht): near enough, and the same on every machine.
    return share / (hazard * (1.0 - share))


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
