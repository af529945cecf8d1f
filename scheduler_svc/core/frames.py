"""The form of a recording: a header, then one frame an event, each with its length and checksum.

::

    | u32 length | u32 crc32 | payload |   little-endian, payloads msgpack

What was being written when a process died is a torn tail: it ends the recording and is no error. Anything else that
does not check is. Knows no files: bytes in, frames out.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig

FORMAT = 2
_PREFIX = struct.Struct("<II")
_MAX_FRAME = 1 << 30


class RecordError(ValueError):
    """Bytes that are no recording of this format, or a damaged one, with the place."""


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
    return _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def read_header(file: BinaryIO) -> Header:
    """The first frame. Raises RecordError."""
    payload = _read_payload(file)
    if payload is None:
        raise RecordError("a recording begins with a header, this file with none")
    try:
        header = _HEADER_DECODER.decode(payload)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RecordError(f"the header is none of this version: {error}") from None
    if header.format != FORMAT:
        raise RecordError(f"the recording has format {header.format}, this program reads {FORMAT}")
    return header


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """The frames after the header, up to the end or a torn tail. Raises RecordError."""
    while True:
        at = file.tell()
        payload = _read_payload(file)
        if payload is None:
            return
        try:
            yield _FRAME_DECODER.decode(payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise RecordError(f"the frame at byte {at} is none of this version: {error}") from None


def _read_payload(file: BinaryIO) -> bytes | None:
    at = file.tell()
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    length, checksum = _PREFIX.unpack(prefix)
    payload = file.read(length) if length <= _MAX_FRAME else b""
    if len(payload) == length and zlib.crc32(payload) == checksum:
        return payload
    if (len(payload) < length and length <= _MAX_FRAME) or not file.read(1):
        return None
    raise RecordError(f"the frame at byte {at} is damaged, and more follows it")
