"""What the client library returns. Plain data: no protobuf, no connection."""

import enum
from collections.abc import Mapping

import msgspec


class FinishReason(enum.StrEnum):
    """How a choice ended."""

    LENGTH = "length"
    EOS = "eos"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"  # noqa: S105 - no credential
    CONTEXT_LIMIT = "context_limit"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    OTHER = "other"
    """One that this version of the library does not know."""

    @property
    def is_success(self) -> bool:
        """Whether the choice holds all that was asked for."""
        return self not in _FAILURES


_FAILURES = frozenset({FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR, FinishReason.OTHER})


class CancelOutcome(enum.StrEnum):
    """What a cancellation met."""

    WAS_WAITING = "was_waiting"
    WAS_RUNNING = "was_running"
    ALREADY_ENDED = "already_ended"
    UNKNOWN = "unknown"


class RequestState(enum.StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ENDED = "ended"
    OTHER = "other"


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have been chosen."""

    token_id: int
    logprob: float
    piece: bytes


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its log-probability before penalties and temperature; None for a prompt's first token."""

    token_id: int
    logprob: float | None
    piece: bytes
    """Its bytes, which may be a part of a code point."""
    top: tuple[Alternative, ...] = ()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New output of one choice."""

    index: int
    """Which choice."""
    offset: int
    """Position of its first token in the choice's output."""
    num_tokens: int
    text: str
    """May be empty; always whole code points."""
    token_ids: tuple[int, ...] = ()
    """Where asked for by ``token_ids=True``."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Where asked for."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens used, counted as ids."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    output_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a choice went, as the server measured it."""

    queue_ms: float = 0.0
    ttft_ms: float | None = None
    total_ms: float = 0.0
    itl_p50_ms: float | None = None
    itl_max_ms: float | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with one choice."""

    reason: str
    message: str
    retryable: bool = False
    retry_delay_s: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of the prompt."""

    index: int
    text: str
    num_tokens: int
    """Received so far; equals ``usage.output_tokens`` at the end."""
    token_ids: tuple[int, ...] = ()
    """Where asked for by ``token_ids=True``."""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    """None while it goes on, or when the stream broke first."""
    stop: str | int | None = None
    """The stop string or stop token id that ended it."""
    failure: Failure | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    preemptions: int = 0
    seed: int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """All choices of one request."""

    request_id: str
    model: str
    prompt_tokens: int
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        """Of all choices together: the prompt once, the outputs added."""
        known = [choice.usage for choice in self.choices if choice.usage is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=max((usage.cached_tokens for usage in known), default=0),
            output_tokens=sum(choice.num_tokens for choice in self.choices),
        )


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The server's first word on a request."""

    request_id: str
    stream_token: str
    model: str
    prompt_tokens: int
    queue_position: int
    """How many wait ahead of it."""
    predicted_ttft_ms: float | None = None
    resumed: bool = False


class Tokenization(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of an input, and the bytes of each."""

    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in force for requests to a model; see ``chairlift.v1.Limits``."""

    max_prompt_tokens: int
    default_max_tokens: int | None
    max_choices: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_stop_token_ids: int
    max_logit_bias_entries: int
    max_logprobs: int
    max_prompt_logprobs: int
    max_chat_messages: int
    max_priority: int
    max_request_bytes: int
    max_request_duration_ms: float
    max_detach_grace_ms: float
    max_num_queued_reqs: int
    max_num_queued_tokens: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A served model."""

    id: str
    context_length: int
    vocab_size: int
    dtype: str
    quantization: str
    kv_capacity_tokens: int
    num_parameters: int
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    deterministic: bool
    limits: Limits


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a request went."""

    request_id: str
    state: RequestState
    total_ms: float
    wait_ms: float
    """Exactly the sum of `waits`."""
    waits: Mapping[str, float]
    """Milliseconds by what it waited for: seats, token_budget, kv_blocks, …"""
    iterations: int
    prefill_chunks: int
    preemptions: int
    swaps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_position: int | None = None
