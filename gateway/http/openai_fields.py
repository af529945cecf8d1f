"""OpenAI's request bodies as structs, and which of their fields are taken, harmless, or refused by name.

A field that this server does not support is never ignored: it is refused, unless its value asks for nothing.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Uint32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Int32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Stop = str | list[str]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries beside its choices."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatTurnBody(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart]
    name: str | None = None


class CommonBody(msgspec.Struct, frozen=True, kw_only=True):
    """What both methods take. From `top_k` on the fields are this server's own, named as in the field."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    n: Uint32 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    max_tokens: Uint32 | None = None
    seed: int | None = None
    """64 bits, with or without a sign."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    """A label for OpenAI's own purposes, which changes no output."""
    top_k: Uint32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Uint32 | None = None
    stop_token_ids: list[Uint32] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Int32 | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[ChatTurnBody]
    max_completion_tokens: Uint32 | None = None
    logprobs: bool | None = None
    top_logprobs: Uint32 | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    """Text or token ids; a list that holds one of them stands for it."""
    logprobs: Uint32 | None = None


HARMLESS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""OpenAI's fields that are not supported, with the values beside null that ask for nothing."""

HARMLESS_OF_TURN: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""The same of a message: clients send an answer's message back as they got it, with every field that it may have."""
