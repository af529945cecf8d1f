"""The form of a recording: a header, then one frame an event, each with its length and checksums.

::

    | u32 length | u32 crc32 of the payload | u32 crc32 of these two | payload |   little-endian, payloads msgpack

What was being written when a process died is a torn tail: the file ends within its last frame. It ends the recording,
is told, and is no error. Anything that does not check is: a length has a checksum of its own, so that a damaged one
does not pass for a frame that the file ends in. Knows no files: bytes in, frames out.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig

FORMAT = 3
_LENGTH = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_PREFIX_BYTES = _LENGTH.size + _CHECK.size
_MAX_FRAME = 1 << 30


class RecordError(ValueError):
    """Bytes that are no recording of this format, or a damaged one, with the place."""


class TornTail(NamedTuple):
    """The file ends in the middle of a frame."""

    at: int
    """Where that frame begins, in bytes."""
    num_bytes: int
    """What is there of it."""

    def __str__(self) -> str:
        return f"ends in the middle of a frame at byte {self.at}, the last {self.num_bytes} bytes are left out"


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What a core has to be made of before the frames can be replayed."""

    format: int
    config: SchedulingConfig
    epoch: int
    has_tokens: bool
    hash_key: bytes
    """Empty where token values are left out: block hashes are then in the frames."""
    version: str
    """Of the program that wrote it."""
    checkpoint: bytes = b""
    """The core's state at the beginning; empty: it was new."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event, when it was handled, and what came of it."""

    now: int
    event: events.Event
    plans: bytes = b""
    """Hashes of the plans that were made, PLAN_HASH_BYTES each."""
    hashes: tuple[tuple[int, int, int, bytes], ...] = ()
    """Block hashes that were needed: request number, choice, block, value; see `hash_source.known_hashes`."""


_ENCODER = msgspec.msgpack.Encoder()
_HEADER_DECODER = msgspec.msgpack.Decoder(Header)
_FRAME_DECODER = msgspec.msgpack.Decoder(Frame)


def pack(part: Header | Frame) -> bytes:
    """One frame as it is written."""
    payload = _ENCODER.encode(part)
    prefix = _LENGTH.pack(len(payload), zlib.crc32(payload))
    return prefix + _CHECK.pack(zlib.crc32(prefix)) + payload


def read_header(file: BinaryIO) -> Header:
    """The first frame. Raises RecordError."""
    try:
        payload = _read_payload(file)
    except RecordError as error:
        raise RecordError(f"{error}; or this is no recording of format {FORMAT}") from None
    if not isinstance(payload, bytes):
        raise RecordError("a recording begins with a header, this file with none")
    try:
        header = _HEADER_DECODER.decode(payload)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RecordError(f"the header is none of this version: {error}") from None
    if header.format != FORMAT:
        raise RecordError(f"the recording has format {header.format}, this program reads {FORMAT}")
    return header


def read_frames(file: BinaryIO, tell_torn: Callable[[TornTail], None] | None = None) -> Iterator[Frame]:
    """The frames after the header, up to the end or a torn tail, of which `tell_torn` hears. Raises RecordError."""
    while True:
        at = file.tell()
        payload = _read_payload(file)
        if payload is None:
            return
        if isinstance(payload, TornTail):
            if tell_torn is not None:
                tell_torn(payload)
            return
        try:
            yield _FRAME_DECODER.decode(payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise RecordError(f"the frame at byte {at} is none of this version: {error}") from None


def _read_payload(file: BinaryIO) -> bytes | TornTail | None:
    """What the next frame holds; None at the end of the file."""
    at = file.tell()
    prefix = file.read(_PREFIX_BYTES)
    if not prefix:
        return None
    if len(prefix) < _PREFIX_BYTES:
        return TornTail(at, len(prefix))
    length, checksum = _LENGTH.unpack_from(prefix)
    if (zlib.crc32(prefix[: _LENGTH.size]),) != _CHECK.unpack_from(prefix, _LENGTH.size) or length > _MAX_FRAME:
        raise RecordError(f"the frame at byte {at} is damaged")
    payload = file.read(length)
    if len(payload) < length:
        return TornTail(at, len(prefix) + len(payload))
    if zlib.crc32(payload) != checksum:
        raise RecordError(f"the frame at byte {at} is damaged")
    return payload
