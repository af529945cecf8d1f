"""What both links share: versions, reasons, sampling parameters.

Evolution rules: a field is only ever appended, with a default; a struct's tag is never reused; another major version
is refused. Hellos announce the tags that a build understands: whoever adds a message after version 1.0 sends it only to
peers that announced it. A reason travels as a plain string, so that an older peer passes on one that it does not know.
"""

import enum

import msgspec

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 1
"""1: a beat of the scheduler says when the next one comes."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of every struct on a link. ``array_like`` keeps a plan of 256 rows at 2 KB instead of 11."""


class Reason(enum.StrEnum):
    """Why a request was refused or failed, or a peer turned away. The gateway maps each to a gRPC status."""

    # the request itself
    INVALID_REQUEST = "INVALID_REQUEST"
    CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
    KV_CAPACITY_EXCEEDED = "KV_CAPACITY_EXCEEDED"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
    OFFSET_NOT_KEPT = "OFFSET_NOT_KEPT"
    # room
    QUEUE_FULL = "QUEUE_FULL"
    TENANT_QUOTA_EXCEEDED = "TENANT_QUOTA_EXCEEDED"
    TTFT_SLO_UNREACHABLE = "TTFT_SLO_UNREACHABLE"
    # time
    DEADLINE = "DEADLINE"
    QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
    # attachment
    SUPERSEDED = "SUPERSEDED"
    SLOW_CLIENT = "SLOW_CLIENT"
    CANCELLED = "CANCELLED"
    WRONG_REVISION = "WRONG_REVISION"
    # the service
    DRAINING = "DRAINING"
    NO_SCHEDULER = "NO_SCHEDULER"
    NO_WORKER = "NO_WORKER"
    STEP_FAILED = "STEP_FAILED"
    INTERNAL = "INTERNAL"
    # between processes
    VERSION_MISMATCH = "VERSION_MISMATCH"
    FINGERPRINT_MISMATCH = "FINGERPRINT_MISMATCH"
    GEOMETRY_MISMATCH = "GEOMETRY_MISMATCH"


class FinishReason(enum.IntEnum):
    """How a choice ended. Values equal those of ``chairlift.v1.FinishReason``."""

    LENGTH = 1
    EOS = 2
    STOP_STRING = 3
    STOP_TOKEN = 4
    CONTEXT_LIMIT = 5
    CANCELLED = 6
    DEADLINE = 7
    ERROR = 8


class CancelOutcome(enum.IntEnum):
    """What a Cancel met. Values equal those of ``chairlift.v1.CancelOutcome``."""

    WAS_WAITING = 1
    WAS_RUNNING = 2
    ALREADY_ENDED = 3
    UNKNOWN = 4


class WaitReason(enum.IntEnum):
    """What a request waited for. A request's waits by reason sum to its whole waiting time, to the nanosecond."""

    SEATS = 1
    TOKEN_BUDGET = 2
    KV_BLOCKS = 3
    FAIR_SHARE = 4
    PRIORITY = 5
    PREEMPTED = 6
    WORKER_LOST = 7


class SamplingParams(Message, frozen=True):
    """How the worker samples one request's tokens, and which ids end it.

    The noise of a sampled token is a hash of (seed, choice, output offset, token id): the same on every device.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output (Keskar et al., 2019)."""
    presence_penalty: float = 0.0
    """Over output only, as is ``frequency_penalty``."""
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added to its logit)."""
    seed: int = 0
    """Unsigned, 64 bits."""
    min_tokens: int = 0
    """EOS and stop ids are masked out of the logits while fewer output tokens than this exist."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """EOS may be sampled and does not end the choice."""
    logprobs: int | None = None
    """Number of alternatives to report beside each sampled token's log-probability; None is off."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens."""


class ProcessFacts(Message, frozen=True):
    """One process, for operators."""

    version: str
    commit: str
    """Empty where it is unknown."""
    ipc_version: str
    epoch: int
    uptime_ns: int
    host: str
    pid: int


class HelloWanted(Message, tag=1, frozen=True):
    """To a peer that speaks without a hello, or that greeted an earlier life of this process: greet again."""

    epoch: int
    """Epoch of the process that asks."""


class HelloRefused(Message, tag=2, frozen=True):
    """The peer's hello was understood and turned down; it says why and does not try again unchanged."""

    reason: str
    """A `Reason`."""
    message: str


def is_compatible(major: int) -> bool:
    """Whether a peer of that major version can be spoken to. Minor versions always can."""
    return major == PROTOCOL_MAJOR
