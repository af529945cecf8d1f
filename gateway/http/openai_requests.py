"""From the body of an OpenAI request to a GenerateRequest, which is then checked as any other.

Only what the other contract cannot express is refused here; bounds and contradictions are found by the one validation.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from chairlift.v1 import inference_pb2 as pb
from gateway.errors.api_error import ApiError, FieldViolation, GatewayReason, refuse_field
from gateway.http.openai_fields import (
    HARMLESS,
    HARMLESS_OF_TURN,
    ChatBody,
    ChatTurnBody,
    CommonBody,
    CompletionBody,
    Uint32,
)
from gateway.validation.violations import Violations

BodyT = TypeVar("BodyT", ChatBody, CompletionBody)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TURNS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_MAX_NAME_CHARS = 64
_PATH = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and how its answer is wanted."""

    request: pb.GenerateRequest
    is_chat: bool
    is_stream: bool
    include_usage: bool


def read_chat(body: bytes) -> Asked:
    """``POST /v1/chat/completions``. Raises ApiError."""
    asked = _decode(body, ChatBody)
    request = _common(asked)
    conversation = request.messages
    for position, turn in enumerate(asked.messages):
        conversation.messages.append(_turn(turn, f"messages[{position}]"))
    # An empty list is a conversation too, and refused as one.
    conversation.SetInParent()
    for name in ("add_generation_prompt", "continue_final_message"):
        _set(conversation, name, getattr(asked, name))
    if asked.max_tokens is not None and asked.max_completion_tokens not in (None, asked.max_tokens):
        raise refuse_field("max_completion_tokens", "must not differ from max_tokens, its older name")
    _set(request.stopping, "max_tokens", asked.max_completion_tokens)
    if asked.logprobs:
        request.output.logprobs = asked.top_logprobs or 0
    elif asked.top_logprobs:
        raise refuse_field("top_logprobs", "needs logprobs to be true")
    return _asked(request, asked, is_chat=True)


def read_completion(body: bytes) -> Asked:
    """``POST /v1/completions``. Raises ApiError."""
    asked = _decode(body, CompletionBody)
    request = _common(asked)
    match asked.prompt:
        case str(text) | [str(text)]:
            request.text = text
        case [[*ids]] | [*ids]:
            _set_ids(request, ids)
    _set(request.output, "logprobs", asked.logprobs)
    return _asked(request, asked, is_chat=False)


def _asked(request: pb.GenerateRequest, body: CommonBody, *, is_chat: bool) -> Asked:
    options = body.stream_options
    if options is not None:
        if not body.stream:
            raise refuse_field("stream_options", "needs stream to be true")
        if options.include_obfuscation:
            raise refuse_field("stream_options.include_obfuscation", "is not supported by this server")
    wants_usage = options is not None and bool(options.include_usage)
    return Asked(request=request, is_chat=is_chat, is_stream=bool(body.stream), include_usage=wants_usage)


def _decode(body: bytes, kind: type[BodyT]) -> BodyT:
    try:
        fields = _FIELDS.decode(body)
        violations = Violations()
        _check_names(violations, fields, kind.__struct_fields__, HARMLESS)
        violations.raise_if_any()
        decoded = msgspec.json.decode(body, type=kind)
        if isinstance(decoded, ChatBody):
            for position, turn in enumerate(_TURNS.decode(fields["messages"])):
                _check_names(
                    violations, turn, ChatTurnBody.__struct_fields__, HARMLESS_OF_TURN, f"messages[{position}]."
                )
            violations.raise_if_any()
        return decoded
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What exactly is wrong with it would quote it.
        wrong = "is no JSON object" if _is_utf8(body) else "is not UTF-8"
        raise ApiError(GatewayReason.MALFORMED_REQUEST, f"the body {wrong}") from None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_names(
    violations: Violations,
    fields: Mapping[str, msgspec.Raw],
    known: Collection[str],
    harmless: Mapping[str, Sequence[object]],
    path: str = "",
) -> None:
    """`path` is put before their names."""
    for name, value in fields.items():
        if name in known:
            continue
        if name not in harmless:
            violations.add(path + _shown(name), "is not known to this server")
        elif not _asks_nothing(value, harmless[name]):
            violations.add(path + name, "is not supported by this server")


def _asks_nothing(packed: msgspec.Raw, harmless: Sequence[object]) -> bool:
    value = msgspec.json.decode(packed)
    # By type too: 1 is not true.
    return value is None or any(value == other and type(value) is type(other) for other in harmless)


def _invalid(text: str) -> ApiError:
    """What msgspec found: it names types and paths, never a value."""
    found = _PATH.fullmatch(text)
    description, path = (found[1], found[2] or "") if found is not None else (text, "")
    unknown = _UNKNOWN_FIELD.fullmatch(description)
    if unknown is not None:
        name = _shown(unknown[1])
        return refuse_field(f"{path}.{name}" if path else name, "is not known to this server")
    if not path:
        return ApiError(GatewayReason.MALFORMED_REQUEST, f"the body: {_lowered(description)}")
    return refuse_field(path, _lowered(description))


def _common(body: CommonBody) -> pb.GenerateRequest:
    request = pb.GenerateRequest(model=body.model, cache_salt=body.cache_salt or "")
    _set(request, "request_id", body.request_id)
    sampling, stopping = request.sampling, request.stopping
    for name in _SAMPLING:
        _set(sampling, name, getattr(body, name))
    if body.seed is not None:
        if not -(1 << 63) <= body.seed < 1 << 64:
            raise refuse_field("seed", "must have at most 64 bits")
        sampling.seed = body.seed % (1 << 64)
    for key, bias in (body.logit_bias or {}).items():
        token_id = _token_id(key)
        if token_id in sampling.logit_bias:
            raise refuse_field("logit_bias", "its keys must be different tokens")
        sampling.logit_bias[token_id] = bias
    for name in ("max_tokens", "min_tokens", "ignore_eos"):
        _set(stopping, name, getattr(body, name))
    match body.stop:
        case str(text):
            stopping.stop.append(text)
        case [*texts]:
            stopping.stop.extend(texts)
    stopping.stop_token_ids.extend(body.stop_token_ids or ())
    stopping.include_stop = bool(body.include_stop_str_in_output)
    _set(request.scheduling, "priority", body.priority)
    return request


_SAMPLING = (
    "temperature",
    "top_p",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
)


def _set(message: object, name: str, value: object) -> None:
    if value is not None:
        setattr(message, name, value)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 1 << 32):
        raise refuse_field("logit_bias", "its keys must be token ids")
    return int(key)


def _turn(turn: ChatTurnBody, path: str) -> pb.ChatMessage:
    # OpenAI's newer name for the same role; models' templates know the older one.
    role = "system" if turn.role == "developer" else turn.role
    message = pb.ChatMessage(role=role, name=turn.name)
    if isinstance(turn.content, str):
        message.content.append(pb.ContentPart(text=turn.content))
        return message
    for position, part in enumerate(turn.content):
        if part.type != "text" or part.text is None:
            raise refuse_field(f"{path}.content[{position}]", "must be text: no other kind of part is supported")
        message.content.append(pb.ContentPart(text=part.text))
    return message


def _set_ids(request: pb.GenerateRequest, ids: list[object]) -> None:
    if any(isinstance(item, str | list) for item in ids):
        raise refuse_field("prompt", "several prompts in one request are not supported")
    try:
        request.token_ids.ids.extend(msgspec.convert(ids, list[Uint32]))
    except msgspec.ValidationError:
        raise refuse_field("prompt", "must be a text or token ids") from None
    request.token_ids.SetInParent()


def _shown(name: str) -> str:
    """A field's name from the body, fit for an error."""
    return "".join(character if character.isprintable() else "?" for character in name[:_MAX_NAME_CHARS])


def _lowered(description: str) -> str:
    return description[:1].lower() + description[1:]


_FIELD_OF = {
    "sampling.": "",
    "stopping.": "",
    "scheduling.": "",
    "messages.messages": "messages",
}
_FIELD_NAMES = {
    "stopping.include_stop": "include_stop_str_in_output",
    "messages.add_generation_prompt": "add_generation_prompt",
    "messages.continue_final_message": "continue_final_message",
    "input": "prompt",
    "text": "prompt",
    "token_ids.ids": "prompt",
}


def name_as_asked(error: ApiError, *, is_chat: bool) -> ApiError:
    """The same error with the names that the fields have in the body."""
    if not error.violations:
        return error
    renamed = tuple(FieldViolation(_asked_name(each.field, is_chat), each.description) for each in error.violations)
    first, others = renamed[0], len(renamed) - 1
    more = f" (and {others} more)" if others else ""
    return ApiError(
        error.reason,
        f"{first.field}: {first.description}{more}",
        violations=renamed,
        limits=error.limits,
        retry_after_s=error.retry_after_s,
    )


def _asked_name(field: str, is_chat: bool) -> str:
    if field == "output.logprobs":
        return "top_logprobs" if is_chat else "logprobs"
    if field == "input" and is_chat:
        return "messages"
    if field in _FIELD_NAMES:
        return _FIELD_NAMES[field]
    if field.startswith("token_ids.ids"):
        return "prompt" + field.removeprefix("token_ids.ids")
    for prefix, name in _FIELD_OF.items():
        if field.startswith(prefix):
            return name + field.removeprefix(prefix)
    return field
