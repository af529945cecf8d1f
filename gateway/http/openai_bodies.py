"""OpenAI's answers as structs: whole ones, the chunks of streams, models."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens, counted as ids; those of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """A token of a chat's output."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of a choice, or of a chunk of one."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Of a choice, or of a chunk of one, as columns."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatMessageBody(msgspec.Struct, frozen=True):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice, whole."""

    index: int
    message: ChatMessageBody
    logprobs: ChatLogprobs | None
    finish_reason: str


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice, whole or a part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class AnswerBody(msgspec.Struct, frozen=True):
    """A whole answer, or a chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: None = None


class ModelBody(msgspec.Struct, frozen=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """All of them."""

    object: Literal["list"]
    data: list[ModelBody]
