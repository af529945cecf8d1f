"""How many prompt tokens a step may take so that running streams keep their pace.

Each decoding stream gets one token a step, so a step's time is their inter-token latency. What the decode rows leave of
`itl_target_ns`, by the device's cost model, is the budget for prompt chunks (after Sarathi-Serve, Agrawal et al., OSDI
2024, whose budget is fixed). Until the model is warm, or with nobody to disturb, the static budget holds.
"""

from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.core.state import SchedulerState


def prefill_budget(state: SchedulerState, budget: int) -> int:
    """At most `budget`; at least a block's worth of it, so that prompts always get on."""
    target, costs, batch = state.config.itl_target_ns, state.cost_model.costs, state.batch
    num_decodes = batch.num_decodes
    if target is None or costs is None or num_decodes == 0 or not state.config.enable_chunked_prefill:
        return budget
    num_kv_tokens = batch.num_column_tokens + num_decodes + sum(one.scheduled for one in batch.joining)
    num_kv_tokens += sum(one.scheduled for one in batch.catching_up)
    room = target - costs.step_ns(StepShape(num_decodes, 0, num_kv_tokens))
    wanted = int(room / costs.prefill_token) if costs.prefill_token > 0 else budget
    return min(budget, max(wanted, state.geometry.block_size))
