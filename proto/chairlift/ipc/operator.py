"""The operator's part of the gateway link: configuration, lists of requests, iterations as they happen, log levels.

Each query carries a number of the gateway's choice and is answered once, by its reply or by `front.QueryFailed`.
Iterations are sent to gateways that watch, on credit: a gateway that does not ask again gets no more of them, so that
what nobody reads fills no queue.

All durations are nanoseconds; points in time are told as ages. No message here holds text or token ids.
"""

from typing import TypeAlias

from chairlift.ipc.common import Message, ProcessFacts

MAX_ITERATIONS_PER_SECOND = 100.0
"""Of what a scheduler tells; the others are left out."""
MAX_ROWS_A_PAGE = 200
"""Requests in one RequestsReply."""

KnobValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None


# ---- configuration ----


class SchedulingKnobs(Message, frozen=True):
    """The scheduler's knobs, named and measured as in the section [scheduler] of the settings; 0 for none."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    long_prefill_token_threshold: int
    watermark: float
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    batching: str
    policy: str
    preemption: str
    static_batch_size: int
    static_batch_wait_ms: float
    max_head_bypass_ms: float
    itl_target_ms: float = 0.0
    queue_timeout_ms: float = 0.0
    ttft_slo_ms: float = 0.0
    max_priority_wait_s: float = 0.0
    fair_input_cost: int = 1
    fair_output_cost: int = 2
    tenant_max_num_seqs: int = 0
    tenant_max_num_queued_reqs: int = 0
    tenant_token_rate: int = 0
    tenants: tuple[str, ...] = ()


class Guard(Message, frozen=True):
    """Takes a change back by itself. Metric, bound and units are those of `scheduler_svc.core.revisions.Guard`."""

    metric: int
    bound: int
    window_ns: int


class ConfigRevision(Message, frozen=True):
    """One state of the knobs."""

    number: int
    """1 at the scheduler's start, one more with each change."""
    knobs: SchedulingKnobs
    age_ns: int
    """Since it came into force."""
    origin: int
    """A ``chairlift.v1.ConfigOrigin``."""
    changed: tuple[str, ...] = ()
    """Knobs in which it differs from the one before."""
    actor: str = ""
    comment: str = ""
    guard: Guard | None = None
    """While it is under watch."""


class ConfigQuery(Message, tag=62, frozen=True):
    """Ask for the scheduling configuration in force. Answered by ConfigReply."""

    query: int
    include_history: bool = False


class ConfigChange(Message, tag=63, frozen=True):
    """New values of some knobs, on top of those in force. Answered by ConfigReply with what is in force then."""

    query: int
    changes: tuple[tuple[str, KnobValue], ...]
    """(name, value), in the settings' units; None for the default."""
    expected_revision: int | None = None
    """Refused with WRONG_REVISION unless this revision is in force; None: any."""
    guard: Guard | None = None
    actor: str = ""
    comment: str = ""
    validate_only: bool = False


class ConfigRollback(Message, tag=64, frozen=True):
    """The values of an earlier revision again, as a new one. Answered by ConfigReply."""

    query: int
    revision: int | None = None
    """None: the one before the one in force."""
    expected_revision: int | None = None
    actor: str = ""
    comment: str = ""


class ConfigReply(Message, tag=83, frozen=True):
    """Answer to the three above."""

    query: int
    revision: int
    """1 at the scheduler's start, one more with each change."""
    knobs: SchedulingKnobs
    age_ns: int
    """How long it has been in force."""
    current: ConfigRevision | None = None
    """The same revision with its circumstances."""
    history: tuple[ConfigRevision, ...] = ()
    """Earlier ones, newest first, where they were asked for."""


# ---- requests ----


class RequestsQuery(Message, tag=65, frozen=True):
    """Ask for requests in order of their numbers. Answered by RequestsReply."""

    query: int
    tenant: str = ""
    """Only this one's; empty: all."""
    states: tuple[str, ...] = ()
    """Only these; empty: all that have not ended."""
    after: int = 0
    """Only those with a larger number."""
    limit: int = MAX_ROWS_A_PAGE


class RequestRow(Message, frozen=True):
    """A request in one line."""

    number: int
    tenant: str
    request_id: str
    state: str
    """As in ExplainReply."""
    priority: int
    n: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    total_ns: int
    wait_ns: int
    preemptions: int
    queue_position: int | None = None
    deadline_in_ns: int | None = None
    is_attached: bool = False
    age_ns: int = 0
    """Since its arrival, whether it has ended or not."""


class RequestsReply(Message, tag=84, frozen=True):
    """Answer to RequestsQuery."""

    query: int
    epoch: int
    requests: tuple[RequestRow, ...]
    has_more: bool
    """Whether there are others with larger numbers."""


class InspectQuery(Message, tag=66, frozen=True):
    """Ask for everything known of one request. Answered by InspectReply."""

    query: int
    tenant: str
    request_id: str


class ChoiceRow(Message, frozen=True):
    """One choice of a request."""

    index: int
    state: str
    finish_reason: int
    """A `FinishReason`; 0 while it lives."""
    known_tokens: int
    scheduled_tokens: int
    computed_tokens: int
    num_blocks: int
    output_tokens: int
    preemptions: int


class InspectReply(Message, tag=85, frozen=True):
    """Answer to InspectQuery."""

    query: int
    request: RequestRow
    waits: tuple[tuple[int, int], ...]
    """(WaitReason, ns)."""
    iterations: int
    prefill_chunks: int
    swaps: int
    choices: tuple[ChoiceRow, ...]
    max_tokens: int
    attempt: int
    trace_id: str = ""


# ---- processes ----


class ServerInfoQuery(Message, tag=67, frozen=True):
    """Ask who serves. Answered by ServerInfoReply."""

    query: int


class ServerInfoReply(Message, tag=86, frozen=True):
    """Answer to ServerInfoQuery; workers by rank, as they have told of themselves."""

    query: int
    scheduler: ProcessFacts
    workers: tuple[ProcessFacts, ...] = ()


class LogLevelCommand(Message, tag=68, frozen=True):
    """Change the lowest level that the replica's processes log. Answered by LoadReply."""

    query: int
    level: str
    duration_ns: int | None = None
    """After it the level of before comes back; None: it stays."""


# ---- iterations ----


class WatchCommand(Message, tag=69, frozen=True):
    """This gateway wants iterations: `credit` of them at most until it says so again. Not answered; 0 ends it."""

    credit: int
    max_per_second: float
    include_riders: bool = False


class SequenceName(Message, frozen=True):
    """A choice of a request."""

    tenant: str
    request_id: str
    choice: int


class Rider(Message, frozen=True):
    """A sequence's part in an iteration."""

    sequence: SequenceName
    num_tokens: int
    is_sampling: bool


class Departure(Message, frozen=True):
    """A sequence that left the batch for good."""

    sequence: SequenceName
    reason: int
    """A `FinishReason`."""


class Displacement(Message, frozen=True):
    """A sequence that lost its place."""

    sequence: SequenceName
    is_swapped: bool


class Blocks(Message, frozen=True):
    """KV blocks, the host's pool included."""

    total: int
    free: int
    cached: int
    used: int
    block_size: int = 0
    host_total: int = 0
    host_used: int = 0


class Iteration(Message, frozen=True):
    """One completed iteration. Who boarded, left and gave way is told since the last one that was told."""

    number: int
    """Of the completed iterations of this scheduler's life: a gap tells how many were left out."""
    worker_epoch: int
    step: int
    age_ns: int
    """Since its plan was sent."""
    num_tokens: int
    num_prefill_tokens: int
    token_budget: int
    num_seqs: int
    max_num_seqs: int
    num_waiting: int
    blocks: Blocks
    plan_ns: int
    device_ns: int
    total_ns: int
    num_discarded_rows: int
    config_revision: int
    boarded: tuple[SequenceName, ...] = ()
    departed: tuple[Departure, ...] = ()
    displaced: tuple[Displacement, ...] = ()
    riders: tuple[Rider, ...] = ()


class IterationReport(Message, tag=87, frozen=True):
    """To a gateway that watches."""

    epoch: int
    iteration: Iteration


FromOperator = (
    ConfigQuery
    | ConfigChange
    | ConfigRollback
    | RequestsQuery
    | InspectQuery
    | ServerInfoQuery
    | LogLevelCommand
    | WatchCommand
)
ToOperator = ConfigReply | RequestsReply | InspectReply | ServerInfoReply | IterationReport
