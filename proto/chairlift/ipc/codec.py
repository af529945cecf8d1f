"""One encoder and one typed decoder a direction of a link."""

from typing import Any, Generic, TypeVar, get_args

import msgspec

MessageT = TypeVar("MessageT")


class MalformedMessageError(ValueError):
    """Bytes that are not a message of this link. The receiver counts and drops them; the process goes on."""


class Codec(Generic[MessageT]):
    """Encodes and decodes one direction of a link.

    `union` is a tagged union of message structs; `max_bytes` bounds what `decode` looks at. Not thread-safe.
    """

    def __init__(self, union: Any, max_bytes: int = 64 << 20) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(union)
        self._max_bytes = max_bytes
        self.tags: tuple[int, ...] = tuple(
            sorted(int(t.__struct_config__.tag) for t in get_args(union)) if get_args(union) else ()
        )
        """Tags that this build understands: announced in the hello."""

    def encode(self, message: MessageT) -> bytes:
        """One message as msgpack bytes."""
        return self._encoder.encode(message)

    def decode(self, frame: bytes | memoryview) -> MessageT:
        """The message in `frame`. Raises MalformedMessageError for anything else; the error holds no payload."""
        if len(frame) > self._max_bytes:
            raise MalformedMessageError(f"frame of {len(frame)} bytes is over the limit of {self._max_bytes}")
        try:
            return self._decoder.decode(frame)
        except msgspec.ValidationError as error:
            raise MalformedMessageError(f"not a message of this link: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            raise MalformedMessageError(f"undecodable frame: {type(error).__name__}") from None
