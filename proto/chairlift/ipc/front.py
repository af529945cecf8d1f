"""The gateway link: gateways submit and attach, the scheduler emits.

Identity. A request's key is (tenant, request_id); the scheduler gives each request an internal number that is never
used again. A gateway gives each *attachment* (a Submit or an Attach) a new base handle, a multiple of
``1 << CHOICE_BITS``; choice i of it is ``handle + i``. Everything emitted names a handle, so what belongs to an older
attachment, attempt or life of either side cannot be mistaken for the current one.

A request's end. Every choice of an accepted request gets exactly one Finished on the handle that is attached then. A
refused one gets Refused and nothing else. Superseded ends an attachment, not the request.

All durations are nanoseconds that remain, never points in time: clocks of two processes are not compared.
"""

from chairlift.ipc.codec import Codec
from chairlift.ipc.common import HelloRefused, HelloWanted, Message, SamplingParams
from chairlift.ipc.operator import FromOperator, ToOperator

CHOICE_BITS = 8
MAX_CHOICES = 1 << CHOICE_BITS


class Load(Message, frozen=True):
    """A replica's account of itself at one moment, by the core's own counts."""

    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences that wait for a first or further place, preempted ones included."""
    preempted: int = 0
    queued_tokens: int = 0
    """Prompt tokens of waiting sequences not yet computed."""
    blocks_total: int = 0
    blocks_free: int = 0
    """Neither in use nor holding cached content."""
    blocks_cached: int = 0
    """Used by nobody, content kept for prefix hits."""
    blocks_used: int = 0
    steps: int = 0
    """Steps completed since the scheduler's start."""
    preemptions: int = 0
    """Since the start, as are the following."""
    requests_accepted: int = 0
    requests_refused: int = 0
    requests_ended: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    attached_gateways: int = 0
    discarded_rows: int = 0
    """Rows computed and thrown away: their sequence had ended meanwhile."""
    worker_epoch: int = 0
    """Life of the worker that is up; 0 while none is."""
    worker_losses: int = 0
    malformed_messages: int = 0
    """Frames dropped on both links."""
    swapped: int = 0
    """Waiting sequences whose KV lies in the host's pool."""
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    config_revision: int = 1
    """Of the scheduling configuration in force."""


class ModelInfo(Message, frozen=True):
    """What the replica's workers serve; empty until the first is up."""

    model: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    kv_capacity_tokens: int
    dtype: str
    quantization: str
    device: str
    deterministic: bool
    num_parameters: int = 0


class ReplicaLimits(Message, frozen=True):
    """Limits in force, for messages to users and for GetModel."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    block_size: int


# ---- gateway to scheduler ----


class GatewayHello(Message, tag=50, frozen=True):
    """First message of a gateway. Answered by SchedulerHello or HelloRefused."""

    major: int
    minor: int
    tags: tuple[int, ...]
    gateway_id: str
    gateway_epoch: int
    """A new number each start: an older life's attachments are lost."""
    fingerprint: str
    """Of config, tokenizer and template that this gateway tokenises with."""


class Submit(Message, tag=51, frozen=True):
    """A new request, the repeat of one, or (attempt > 1) one that an earlier scheduler lost.

    A key that lives already: with the same `digest` this is an attachment from offset 0, with another it is refused
    with REQUEST_ID_IN_USE.
    """

    handle: int
    tenant: str
    request_id: str
    digest: bytes
    """16 bytes: hash of the parsed request, attempt and age left out."""
    prompt: bytes
    """u32 token ids, at least one."""
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    max_tokens: int | None = None
    """Output tokens a choice; None is to the context's end."""
    priority: int = 0
    """Larger goes first."""
    deadline_in_ns: int | None = None
    queue_timeout_in_ns: int | None = None
    ttft_slo_ns: int | None = None
    itl_slo_ns: int | None = None
    detach_grace_ns: int = 0
    cache_salt: str = ""
    gateway_state: bytes = b""
    """Opaque to the scheduler (options, stop strings); given back to whoever attaches. At most 64 KiB."""
    traceparent: str = ""
    tracestate: str = ""
    attempt: int = 1
    age_ns: int = 0
    """Time since the request first reached a gateway: keeps its place in the queue."""
    emitted: tuple[bytes, ...] = ()
    """u32 output ids a choice that clients may have seen; empty on attempt 1."""
    ended: tuple[int, ...] = ()
    """Choices of an earlier attempt that already had their end."""


class Attach(Message, tag=52, frozen=True):
    """Resume: attach to a living or recently ended request. Answered by Attached or Refused."""

    handle: int
    tenant: str
    request_id: str
    epoch: int | None = None
    """Of the scheduler that the client's stream_token names; None without a token."""
    number: int | None = None
    """Internal number that the client's stream_token names."""


class Stopped(Message, tag=53, frozen=True):
    """The gateway found a stop string: this choice's record is cut after `num_tokens` output tokens."""

    handle: int
    num_tokens: int


class Detach(Message, tag=54, frozen=True):
    """The client's stream on this attachment (base handle) has ended, cancelled or broken: a server cannot tell.

    Without detach_grace the request is cancelled.
    """

    handle: int


class Cancel(Message, tag=55, frozen=True):
    """An explicit cancellation by key. Answered by CancelReply."""

    query: int
    tenant: str
    request_id: str


class ExplainQuery(Message, tag=56, frozen=True):
    """Ask where a request's time went. Answered by ExplainReply or QueryFailed."""

    query: int
    tenant: str
    request_id: str


class LoadQuery(Message, tag=57, frozen=True):
    """Ask for the core's own counts. Answered by LoadReply."""

    query: int


class DrainCommand(Message, tag=58, frozen=True):
    """Stop (or, with `undrain`, resume) admitting. Answered by LoadReply; ReplicaState goes to every gateway."""

    query: int
    undrain: bool = False
    deadline_in_ns: int | None = None


class FlushPrefixCacheCommand(Message, tag=59, frozen=True):
    """Forget cached prefixes that nobody uses. Answered by LoadReply."""

    query: int


class GatewayBeat(Message, tag=60, frozen=True):
    """Proves the gateway alive, and of which life."""

    gateway_epoch: int


class GatewayBye(Message, tag=61, frozen=True):
    """The gateway ends on purpose: its attachments are detached, as at its death."""

    gateway_epoch: int


# ---- scheduler to gateway ----


class SchedulerHello(Message, tag=70, frozen=True):
    """Answer to GatewayHello."""

    major: int
    minor: int
    tags: tuple[int, ...]
    replica_id: str
    epoch: int
    """A new number each start."""
    limits: ReplicaLimits
    ready: bool
    draining: bool
    model: ModelInfo | None = None


class ReplicaState(Message, tag=71, frozen=True):
    """Readiness changed: a worker came or went, or draining began or ended."""

    epoch: int
    ready: bool
    draining: bool
    model: ModelInfo | None = None
    limits: ReplicaLimits | None = None
    """They follow the worker's geometry."""


class Accepted(Message, tag=72, frozen=True):
    """The request is in: waiting or running."""

    handle: int
    number: int
    queue_position: int
    """Sequences ahead of it."""
    predicted_ttft_ns: int | None = None


class Attached(Message, tag=73, frozen=True):
    """Everything needed to go on with a living request. Deltas follow from the end of `outputs`."""

    handle: int
    number: int
    prompt_tokens: int
    n: int
    seed: int
    outputs: tuple[bytes, ...]
    """u32 output ids a choice, from offset 0."""
    gateway_state: bytes
    queue_position: int = 0
    output_logprobs: tuple[tuple["DeltaLogprobs", ...], ...] = ()
    """A choice, where they were asked for."""
    prompt_logprobs: tuple["DeltaPromptLogprobs", ...] = ()
    submit: Submit | None = None
    """Of a request that lives: what this gateway needs to submit it again, should this scheduler be lost. Without
    gateway_state and cache_salt."""


class Refused(Message, tag=74, frozen=True):
    """Not accepted; nothing else follows on this handle."""

    handle: int
    reason: str
    """A `Reason`."""
    message: str
    """For the user; holds no text of the request."""
    field: str = ""
    """Path of the field at fault, where there is one."""
    limits: tuple[tuple[str, str], ...] = ()
    """Limits in force, by name."""
    retry_after_ns: int | None = None
    """When a retry may succeed; None where a retry is pointless."""


class DeltaLogprobs(Message, frozen=True):
    """Log-probabilities of one output token: itself first, then its alternatives, most likely first."""

    handle: int
    offset: int
    token_ids: bytes
    logprobs: bytes


class DeltaPromptLogprobs(Message, frozen=True):
    """Log-probabilities of a run of prompt tokens, `width` items a token; `handle` is the attachment's base."""

    handle: int
    offset: int
    width: int
    token_ids: bytes
    logprobs: bytes


class Deltas(Message, tag=75, frozen=True):
    """Tokens of one step for one gateway, as columns: entry i has ``counts[i]`` tokens from ``offsets[i]`` on."""

    handles: bytes
    """u64 choice handles."""
    offsets: bytes
    """u32: position of the entry's first token in its choice's output."""
    tokens: bytes
    """u32, all entries' tokens one after another."""
    counts: bytes = b""
    """u32; empty when every entry has one token."""
    logprobs: tuple[DeltaLogprobs, ...] = ()
    prompt_logprobs: tuple[DeltaPromptLogprobs, ...] = ()


class Finished(Message, tag=76, frozen=True):
    """The end of one choice; sent once, after its last token."""

    handle: int
    reason: int
    """A `FinishReason`. Where the gateway matched a stop string before this arrived, STOP_STRING stands."""
    num_tokens: int
    """Output tokens that count: with Stopped, up to the one that completed the match."""
    cached_tokens: int = 0
    """Prompt tokens not computed thanks to the prefix index, at first boarding; the same in every choice."""
    stop_token_id: int | None = None
    preemptions: int = 0
    queue_ns: int = 0
    """From arrival to first boarding."""
    ttft_ns: int | None = None
    """From arrival to first token."""
    total_ns: int = 0
    failure_reason: str = ""
    """A `Reason` where `reason` is ERROR, DEADLINE or CANCELLED."""
    failure_message: str = ""
    retry_after_ns: int | None = None
    request_ended: bool = False
    """True on the last Finished of the request."""


class Superseded(Message, tag=77, frozen=True):
    """A newer attachment took over; nothing else follows on this handle."""

    handle: int


class CancelReply(Message, tag=78, frozen=True):
    """Answer to Cancel."""

    query: int
    outcome: int
    """A `CancelOutcome`."""


class ExplainReply(Message, tag=79, frozen=True):
    """Where a request's time went. Waits sum exactly to `wait_ns`."""

    query: int
    request_id: str
    state: str
    wait_ns: int
    waits: tuple[tuple[int, int], ...]
    """(WaitReason, ns)."""
    total_ns: int
    iterations: int
    """Steps in which it rode."""
    prefill_chunks: int
    preemptions: int
    swaps: int
    cached_tokens: int
    prompt_tokens: int
    output_tokens: int
    queue_position: int | None = None


class QueryFailed(Message, tag=80, frozen=True):
    """A query that has no answer."""

    query: int
    reason: str
    message: str
    field: str = ""
    """Name of what is at fault, where there is one."""
    limits: tuple[tuple[str, str], ...] = ()


class LoadReply(Message, tag=81, frozen=True):
    """Answer to LoadQuery and to the operator's commands."""

    query: int
    epoch: int
    ready: bool
    draining: bool
    load: Load
    num_flushed: int = 0
    """Blocks that FlushPrefixCacheCommand has freed."""


class ReplicaBeat(Message, tag=82, frozen=True):
    """Proves the scheduler alive, of which life, and how loaded it is: gateways route by it."""

    epoch: int
    load: Load
    next_in_ns: int = 0
    """Time until the next one, unless something happens before; 0: it comes at the usual interval."""


ToScheduler = (
    GatewayHello
    | Submit
    | Attach
    | Stopped
    | Detach
    | Cancel
    | ExplainQuery
    | LoadQuery
    | DrainCommand
    | FlushPrefixCacheCommand
    | GatewayBeat
    | GatewayBye
    | FromOperator
)
ToGateway = (
    HelloWanted
    | HelloRefused
    | SchedulerHello
    | ReplicaState
    | Accepted
    | Attached
    | Refused
    | Deltas
    | Finished
    | Superseded
    | CancelReply
    | ExplainReply
    | QueryFailed
    | LoadReply
    | ReplicaBeat
    | ToOperator
)


def to_scheduler_codec(max_bytes: int = 64 << 20) -> Codec[ToScheduler]:
    """Codec of what gateways send."""
    return Codec(ToScheduler, max_bytes)


def to_gateway_codec(max_bytes: int = 64 << 20) -> Codec[ToGateway]:
    """Codec of what the scheduler sends to gateways."""
    return Codec(ToGateway, max_bytes)
