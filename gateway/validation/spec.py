"""A Generate request after validation."""

from typing import TypeAlias

import msgspec

from chairlift.ipc.common import SamplingParams
from gateway.text.chat_template import Chat


class TextInput(msgspec.Struct, frozen=True):
    """A raw prompt."""

    text: str


class IdsInput(msgspec.Struct, frozen=True):
    """A prompt in token ids."""

    ids: tuple[int, ...]


class ChatInput(msgspec.Struct, frozen=True):
    """A conversation."""

    chat: Chat


PromptInput: TypeAlias = TextInput | IdsInput | ChatInput


class StopRules(msgspec.Struct, frozen=True):
    """What ends a choice and is found in its text, or changes its text."""

    strings: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0


class GenerateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a request asks for, with defaults filled in."""

    request_id: str | None
    """None: the server chooses one."""
    digest: bytes
    input: PromptInput
    input_field: str
    """Name of the field that the prompt came in, for messages."""
    sampling: SamplingParams
    """Without a seed where none was given."""
    seed: int | None
    n: int
    max_tokens: int | None
    stop: StopRules
    priority: int
    queue_timeout_ns: int | None
    ttft_slo_ns: int | None
    itl_slo_ns: int | None
    detach_grace_ns: int
    cache_salt: str
    wants_token_ids: bool
