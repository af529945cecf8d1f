"""The opaque token by which a client names the life of a request: replica, scheduler's epoch, internal number."""

import base64
import binascii

import msgspec

from gateway.errors.api_error import refuse_field

_MAX_CHARS = 512


class StreamToken(msgspec.Struct, frozen=True, array_like=True):
    """What a stream token says. It is no secret and no permission: the tenant is checked anew at each call."""

    replica_id: str
    epoch: int
    number: int


def encode_token(token: StreamToken) -> str:
    """URL-safe text."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(token)).decode().rstrip("=")


def decode_token(text: str) -> StreamToken:
    """The inverse. Raises ApiError for text that no gateway of ours wrote."""
    try:
        if len(text) > _MAX_CHARS:
            raise ValueError("too long")
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        token = msgspec.msgpack.decode(packed, type=StreamToken)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise refuse_field("stream_token", "is no token of this service") from None
    if not (0 <= token.epoch < 1 << 63 and 0 <= token.number < 1 << 63):
        raise refuse_field("stream_token", "is no token of this service")
    return token
