"""The worker link: the scheduler sends plans, workers answer with what they sampled.

A plan is a diff against the last one. Rows are seats of the batch, numbered from 0; a *row* stays with one sequence
from boarding to leaving. Device order makes it safe: plans run in order, so whatever a plan frees may be given away
by the next. Rules of a step that both sides rely on:

- A row holds tokens (ids known), of which `computed` are in the KV cache. A step of n tokens computes positions
  ``[computed, computed + n)``. When that reaches the end of the known tokens, the row samples one token, which becomes
  its next known token on the device at once. A decode is n = 1 on the token sampled last, so that plan N + 1 can be
  made while N runs.
- The block table of a row covers positions ``[0, len(blocks) * block_size)`` before any step that writes there.
- Order inside a plan: reset, left, boarded, appended; then swap_out, copies, swap_in; then compute.
- A failed step (StepFailed) or a plan out of order (NeedSnapshot) makes the worker refuse every later plan until one
  with `reset`.

A worker has two DEALER sockets: its main one, with an identity of its choice, and its heartbeat thread's, whose
identity is the same plus `BEAT_SUFFIX`. The scheduler answers on the main one only.
"""

import enum

from chairlift.ipc.codec import Codec
from chairlift.ipc.common import HelloRefused, HelloWanted, Message, ProcessFacts, SamplingParams

BEAT_SUFFIX = b".beat"


class Geometry(Message, frozen=True):
    """What a worker serves and how much of it. Equal on every rank of a replica."""

    model: str
    fingerprint: str
    """Of config, tokenizer and template: gateways must have the same."""
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together that one sequence may hold."""
    eos_token_ids: tuple[int, ...]
    block_size: int
    """Tokens a KV block."""
    num_blocks: int
    num_host_blocks: int
    """Blocks of the swap pool on the host; 0 without one."""
    max_num_seqs: int
    """Rows that the device state was sized for."""
    max_num_batched_tokens: int
    """Largest step that the worker warmed up for."""
    kv_bytes_per_token: int
    dtype: str
    quantization: str = "none"
    device: str = "cpu"
    deterministic: bool = False
    num_parameters: int = 0


class WorkerHello(Message, tag=10, frozen=True):
    """First message of a worker, sent when it is ready for a plan of any allowed shape."""

    major: int
    minor: int
    tags: tuple[int, ...]
    worker_epoch: int
    """A new number each start; every result carries it."""
    rank: int
    world_size: int
    geometry: Geometry
    pid: int = 0
    host: str = ""
    process: ProcessFacts | None = None
    """As of the hello."""


class WorkerBeat(Message, tag=11, frozen=True):
    """Proves life and shows progress: while a step is in work from the heartbeat thread, on a socket of its own."""

    worker_epoch: int
    rank: int
    last_step: int
    """The last step completed."""
    busy_ns: int
    """How long the step in work has been running; 0 when idle."""


class RowLogprobs(Message, frozen=True):
    """Log-probabilities of one token: itself first, then its alternatives, most likely first."""

    index: int
    """Position in `StepDone.sampled`."""
    token_ids: bytes
    """u32, 1 + k items."""
    logprobs: bytes
    """f32, 1 + k items."""


class PromptLogprobs(Message, frozen=True):
    """Log-probabilities of a run of prompt tokens of one row."""

    row: int
    offset: int
    """Position in the prompt of the first token described (position 0 has none)."""
    width: int
    """Items a token: 1 + k."""
    token_ids: bytes
    """u32, n * width items."""
    logprobs: bytes
    """f32, n * width items."""


class EndKind(enum.IntEnum):
    """Why the worker marks a sampled token as its row's end."""

    EOS = 1
    STOP_TOKEN = 2


class StepDone(Message, tag=12, frozen=True):
    """What a plan gave, in the order of its rows: decode rows first, then chunk rows that reached their end."""

    worker_epoch: int
    step: int
    sampled: bytes
    """u32, one id a row that sampled."""
    ends: bytes = b""
    """u32 pairs (index in `sampled`, EndKind)."""
    logprobs: tuple[RowLogprobs, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    device_ns: int = 0
    """Time that the device computed."""
    host_ns: int = 0
    """Time between the plan's receipt (or the end of the step before it) and this result, device time excluded."""


class StepFailed(Message, tag=13, frozen=True):
    """A step that gave no result. KV of its rows is as before; later plans are refused until a snapshot."""

    worker_epoch: int
    step: int
    kind: str
    """``exception``, ``invalid_plan`` or ``out_of_memory``."""
    message: str
    """For the operator's log; holds no prompt or output text or ids."""
    rows: bytes = b""
    """u32 rows known to be at fault; empty when unknown."""


class NeedSnapshot(Message, tag=14, frozen=True):
    """A plan came that does not follow the last one."""

    worker_epoch: int
    expected_step: int


class WorkerBye(Message, tag=15, frozen=True):
    """The worker ends on purpose; its KV cache is gone."""

    worker_epoch: int


class SchedulerGreeting(Message, tag=30, frozen=True):
    """Answer to a WorkerHello: the scheduler has taken the worker in."""

    major: int
    minor: int
    tags: tuple[int, ...]
    epoch: int


class SchedulerBeat(Message, tag=31, frozen=True):
    """Proves the scheduler alive, and of which life."""

    epoch: int
    next_in_ns: int = 0
    """Time until the next one, unless something happens before; 0: it comes at the usual interval."""


class BoardedRow(Message, frozen=True):
    """All data of a sequence that takes a row."""

    row: int
    tokens: bytes
    """u32 ids known: prompt and what was emitted before."""
    prompt_len: int
    """How many of `tokens` are the prompt; penalties and offsets count from here."""
    computed: int
    """Leading tokens whose KV is already in `blocks`: cached, swapped in, or copied."""
    blocks: bytes
    """u32 block table."""
    choice: int
    sampling: SamplingParams


class Plan(Message, tag=32, frozen=True):
    """One step. See the module's rules; columns are u32."""

    worker_epoch: int
    """The life of the worker that this plan is for; another drops it."""
    step: int
    """One more than the last plan's, unless `reset`."""
    reset: bool = False
    """Forget every row first: `boarded` is then the whole batch."""
    left: bytes = b""
    """Rows that leave."""
    boarded: tuple[BoardedRow, ...] = ()
    appended: bytes = b""
    """Pairs (row, block): the block goes to the end of the row's table."""
    swap_out: bytes = b""
    """Pairs (block, host block)."""
    copies: bytes = b""
    """Pairs (source block, destination block): copy-on-write."""
    swap_in: bytes = b""
    """Pairs (host block, block)."""
    decode: bytes = b""
    """Rows that compute one token and sample."""
    chunks: bytes = b""
    """Pairs (row, number of tokens): prefill; samples where it reaches the row's end."""
    traceparent: str = ""
    """W3C trace context of this iteration's span, below which the worker makes one; empty where it has none."""
    expected_ns: int = 0
    """How long the step should take, by the cost model; 0 where that is not known yet."""


class LogLevel(Message, tag=33, frozen=True):
    """The lowest level that the worker logs from now on."""

    level: str


ToScheduler = WorkerHello | WorkerBeat | StepDone | StepFailed | NeedSnapshot | WorkerBye
ToWorker = SchedulerGreeting | SchedulerBeat | HelloWanted | HelloRefused | Plan | LogLevel


def to_scheduler_codec(max_bytes: int = 64 << 20) -> Codec[ToScheduler]:
    """Codec of what workers send."""
    return Codec(ToScheduler, max_bytes)


def to_worker_codec(max_bytes: int = 64 << 20) -> Codec[ToWorker]:
    """Codec of what the scheduler sends to workers."""
    return Codec(ToWorker, max_bytes)


def geometry_differences(one: Geometry, other: Geometry) -> list[str]:
    """Names of the fields in which two ranks of a replica disagree."""
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
