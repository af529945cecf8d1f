"""Builds request messages from Python values."""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypedDict

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from chairlift.client.errors import FieldViolation, InvalidArgumentError
from chairlift.v1 import inference_pb2 as pb


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation. Dicts with the same keys do as well."""

    role: str
    content: str
    name: str | None = None


Prompt: TypeAlias = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, Any]]
"""Text, token ids, or a conversation."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`: the fields of ``GenerateRequest``, durations in seconds.

    What is left out is left to the server's defaults.
    """

    request_id: str
    """Default: a random one."""
    model: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    n: int
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    ignore_eos: bool
    priority: int
    queue_timeout: float
    ttft_slo: float
    itl_slo: float
    logprobs: int
    prompt_logprobs: int
    token_ids: bool
    """Whether deltas and choices carry token ids."""
    detach_grace: float
    """How long the server goes on when the stream breaks. Default: the client's `RetryPolicy.detach_grace_s`."""
    cache_salt: str
    add_generation_prompt: bool
    """Conversations only, as is the next one."""
    continue_final_message: bool
    timeout: float | None
    """Deadline of the whole request, retries and resumptions included."""


_GROUPS = {
    "sampling": frozenset(pb.Sampling.DESCRIPTOR.fields_by_name),
    "stopping": frozenset(pb.Stopping.DESCRIPTOR.fields_by_name),
    "scheduling": frozenset(pb.Scheduling.DESCRIPTOR.fields_by_name),
    "output": frozenset(pb.Output.DESCRIPTOR.fields_by_name),
    "delivery": frozenset(pb.Delivery.DESCRIPTOR.fields_by_name),
}
_DURATIONS = frozenset({"queue_timeout", "ttft_slo", "itl_slo", "detach_grace"})
_CHAT = frozenset({"add_generation_prompt", "continue_final_message"})
_TOP_LEVEL = frozenset({"request_id", "model", "cache_salt"})
_KNOWN = frozenset().union(*_GROUPS.values()) | _CHAT | _TOP_LEVEL


def build_generate(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """The request, with a random request_id where none is given, so that it can be retried and resumed.

    Raises TypeError for an unknown option or a value of the wrong type, InvalidArgumentError for one that no field can
    hold.
    """
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None and key != "timeout"}
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}")
    given.setdefault("request_id", new_request_id())
    request = pb.GenerateRequest()
    _fill(request, given, _TOP_LEVEL, "")
    _fill_groups(request, given)
    set_input(request, prompt, **{key: given[key] for key in _CHAT if key in given})
    return request


def let_outlive_its_stream(request: pb.GenerateRequest, seconds: float) -> None:
    """Sets `detach_grace`, so that a stream that breaks can be taken up again, where the request says nothing of it."""
    if seconds > 0 and not request.delivery.HasField("detach_grace"):
        request.delivery.detach_grace.CopyFrom(duration(seconds))


def outlives_its_stream(request: pb.GenerateRequest) -> bool:
    """Whether the end of its stream does not end it: then it takes a Cancel."""
    grace = request.delivery.detach_grace
    return bool(grace.seconds or grace.nanos)


def build_tokenize(prompt: str | Sequence[Any], model: str, add_special_tokens: bool | None) -> pb.TokenizeRequest:
    """The request for the token ids of text or a conversation. Raises as `build_generate`."""
    request = pb.TokenizeRequest(model=model, add_special_tokens=add_special_tokens)
    with _naming("text" if isinstance(prompt, str) else "messages"):
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.messages.CopyFrom(_chat_messages(prompt, {}))
    return request


def new_request_id() -> str:
    """An id that nobody else will choose."""
    return secrets.token_hex(16)


def set_input(request: pb.GenerateRequest, prompt: Any, **chat_options: bool) -> None:
    """Sets the request's `input`. Raises TypeError when `prompt` is none of the three kinds."""
    match prompt:
        case str():
            with _naming("text"):
                request.text = prompt
        case [ChatMessage() | Mapping(), *_]:
            with _naming("messages"):
                request.messages.CopyFrom(_chat_messages(prompt, chat_options))
            return
        case Sequence() if not isinstance(prompt, bytes | bytearray):
            with _naming("token_ids"):
                request.token_ids.SetInParent()
                request.token_ids.ids.extend(prompt)
        case _:
            raise TypeError(f"a prompt is text, token ids or messages, not {type(prompt).__name__}")
    if chat_options:
        raise TypeError(f"{next(iter(chat_options))} is for conversations only")


def _fill_groups(request: pb.GenerateRequest, given: dict[str, Any]) -> None:
    """Sets the parts of the request that something was given for, and leaves the others absent."""
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    for name in _DURATIONS & given.keys():
        with _naming(name):
            given[name] = duration(given[name])
    for group, keys in _GROUPS.items():
        if keys & given.keys():
            part = getattr(request, group)
            part.SetInParent()
            _fill(part, given, keys, f"{group}.")


def _fill(message: Message, given: Mapping[str, Any], keys: frozenset[str], path: str) -> None:
    for key in sorted(keys & given.keys()):
        with _naming(path + key):
            message.MergeFrom(type(message)(**{key: given[key]}))


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Errors of a block that sets `field` name it."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"{field}: {error}") from error
    except ValueError as error:
        violation = FieldViolation(field, str(error))
        raise InvalidArgumentError("the request cannot hold this", field_violations=(violation,)) from error


def duration(seconds: float) -> Duration:
    """`seconds` as a protobuf Duration, to the nanosecond. Raises ValueError."""
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no duration")
    result = Duration()
    result.FromNanoseconds(round(seconds * 1e9))
    return result


def _chat_messages(messages: Sequence[Any], options: Mapping[str, bool]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[_chat_message(message) for message in messages], **options)


def _chat_message(message: Any) -> pb.ChatMessage:
    match message:
        case ChatMessage(role=role, content=content, name=name):
            return pb.ChatMessage(role=role, content=[pb.ContentPart(text=content)], name=name)
        case Mapping() if {"role", "content"} <= message.keys() <= {"role", "content", "name"}:
            content = message["content"]
            parts = [content] if isinstance(content, str) else content
            return pb.ChatMessage(
                role=message["role"], content=[_content_part(part) for part in parts], name=message.get("name")
            )
        case _:
            raise TypeError("a chat message has a role, a content (text or text parts), perhaps a name, and no more")


def _content_part(part: object) -> pb.ContentPart:
    match part:
        case str():
            return pb.ContentPart(text=part)
        case {"text": str() as text, **rest} if rest in ({}, {"type": "text"}):
            return pb.ContentPart(text=text)
        case _:
            raise TypeError("a part of a chat message is text")
