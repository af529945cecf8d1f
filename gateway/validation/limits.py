"""Limits in force for requests, from the settings and from what the replica serves."""

import msgspec

from chairlift.ipc.front import MAX_CHOICES, ModelInfo
from chairlift.runtime.settings import GatewaySettings

MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS_ENTRIES = 300
MAX_SALT_BYTES = 256
MAX_ROLE_CHARS = 64
MAX_NAME_CHARS = 128
MAX_STOP_BYTES_IN_ALL = 60 << 10
"""All stop strings travel with the request's state, which has 64 KiB."""


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may ask for."""

    vocab_size: int
    max_model_len: int
    kv_capacity_tokens: int
    max_piece_bytes: int
    """Most bytes that one token of text stands for."""
    default_max_tokens: int | None
    max_choices: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_logprobs: int
    max_chat_messages: int
    max_priority: int
    max_request_bytes: int
    max_request_duration_s: float
    max_detach_grace_s: float

    @property
    def max_prompt_tokens(self) -> int:
        """Most prompt tokens that leave room for one of output."""
        # The last token of an output is never computed: it needs room in the context and none in the cache.
        return min(self.max_model_len - 1, self.kv_capacity_tokens)

    def output_room(self, prompt_len: int) -> int:
        """Most output tokens behind a prompt of that length."""
        return min(self.max_model_len, self.kv_capacity_tokens + 1) - prompt_len


def make_limits(settings: GatewaySettings, model: ModelInfo, max_piece_bytes: int) -> RequestLimits:
    """The limits for `model`."""
    return RequestLimits(
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        kv_capacity_tokens=model.kv_capacity_tokens,
        max_piece_bytes=max_piece_bytes,
        default_max_tokens=settings.default_max_tokens,
        max_choices=min(settings.max_choices, MAX_CHOICES),
        max_stop_strings=settings.max_stop_strings,
        max_stop_string_bytes=settings.max_stop_bytes,
        max_logprobs=settings.max_logprobs,
        max_chat_messages=settings.max_chat_messages,
        max_priority=settings.max_priority,
        max_request_bytes=settings.max_request_bytes,
        max_request_duration_s=settings.max_request_duration_s,
        max_detach_grace_s=settings.max_detach_grace_s,
    )
