"""The policies by the name that the settings give them."""

from scheduler_svc.core.columns import Confirmed
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.policies.fair import Fair
from scheduler_svc.core.policies.fcfs import Fcfs
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.policies.priority import Priority
from scheduler_svc.core.policies.slo import Slo


def make_policy(config: SchedulingConfig, confirmed: Confirmed) -> Policy:
    """An empty queue in the configured order. `confirmed` knows the last completed step."""
    match config.policy:
        case "fcfs":
            return Fcfs()
        case "priority":
            return Priority(config.max_priority_wait_ns)
        case "fair":
            return Fair(config.fair_input_cost, config.fair_output_cost, confirmed)
        case "slo":
            return Slo(config.ttft_slo_ns, config.max_priority_wait_ns)
