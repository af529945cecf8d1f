"""The scheduler's knobs as the core sees them: whole numbers, durations in nanoseconds.

Mirrors the scheduling part of the settings file; the shell converts. A config is replaced whole (ConfigChanged).
"""

from collections import Counter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chairlift.ipc.tenant_rule import TenantRule

Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]

Batching = Literal["continuous", "static"]
PolicyName = Literal["fcfs", "priority", "fair", "slo"]
PreemptionMode = Literal["auto", "recompute", "swap"]

PARTS_PER_MILLION = 1_000_000


class SchedulingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names as in the settings file and in the field; ``None`` takes what the worker's geometry allows."""

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    long_prefill_token_threshold: CountOrZero = 0
    watermark_ppm: CountOrZero = 10_000
    """Millionths of all blocks that stay free when a waiting sequence boards."""
    max_num_queued_reqs: Count = 10_000
    max_num_queued_tokens: Count = 16_000_000
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    share_prefix_across_tenants: bool = False
    overlap: bool = True
    batching: Batching = "continuous"
    static_batch_size: Count | None = None
    static_batch_wait_ns: CountOrZero = 50_000_000
    itl_target_ns: Count | None = None
    """Prompt chunks are cut so that a step takes no longer, as far as the device's cost model tells."""
    ttft_slo_ns: Count | None = None
    """Requests whose first token is predicted to come later than this are refused; a request's own value goes first."""
    queue_timeout_ns: Count | None = None
    """Longest wait for a first seat, where the request says nothing."""
    policy: PolicyName = "fcfs"
    max_priority_wait_ns: CountOrZero = 30_000_000_000
    """`priority` and `slo`: who has waited so long goes before everyone."""
    fair_input_cost: Count = 1
    """`fair`: what a computed prompt token counts."""
    fair_output_cost: Count = 2
    tenant_max_num_seqs: Count | None = None
    tenant_max_num_queued_reqs: Count | None = None
    tenant_token_rate: Count | None = None
    """Prompt and output tokens a second, in the long run."""
    tenants: tuple[TenantRule, ...] = ()
    """Tenants with values of their own; see `tenants.parse_rule`."""
    preemption: PreemptionMode = "auto"
    max_head_bypass_ns: CountOrZero = 1_000_000_000
    gateway_loss_grace_ns: CountOrZero = 60_000_000_000
    worker_restart_grace_ns: CountOrZero = 120_000_000_000
    max_ended_requests_kept: CountOrZero = 1000


def find_conflict(config: SchedulingConfig) -> str | None:
    """Why these knobs contradict each other; None when they do not."""
    if config.itl_target_ns is not None and not config.enable_chunked_prefill:
        return "itl_target_ms cuts prompts into chunks: it needs enable_chunked_prefill"
    seats, batch = config.max_num_seqs, config.static_batch_size
    if config.batching == "static" and seats is not None and batch is not None and batch > seats:
        return "static_batch_size is larger than max_num_seqs"
    names = Counter(rule.partition(":")[0] for rule in config.tenants).most_common(1)
    if names and names[0][1] > 1:
        return f"tenants has more than one rule for {names[0][0]}"
    return None
