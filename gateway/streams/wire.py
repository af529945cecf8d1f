"""The bytes of a plain delta, written by hand: it is what nearly every message is, and building it as a message object
costs more than all else that the gateway does for a token.

`tests/gateway/streams/test_wire.py` holds it to what protobuf makes of the same fields.
"""

_NUM_CACHED = 1 << 14
_VARINTS: tuple[bytes, ...] = tuple(
    bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80, number >> 7]) for number in range(_NUM_CACHED)
)
# Fields of Delta, by number and wire type.
_INDEX, _OFFSET, _NUM_TOKENS, _TEXT = b"\x08", b"\x10", b"\x18", b"\x2a"
_DELTA_OF_EVENT, _EVENT_OF_RESPONSE = b"\x1a", b"\x0a"


def varint(number: int) -> bytes:
    """Protobuf's encoding of a number that is not negative."""
    if number < _NUM_CACHED:
        return _VARINTS[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_delta(index: int, offset: int, num_tokens: int, text: str) -> bytes:
    """A GenerateResponse with a Delta of these fields and no others; `num_tokens` is at least 1."""
    delta = _NUM_TOKENS + varint(num_tokens)
    if offset:
        delta = _OFFSET + varint(offset) + delta
    if index:
        delta = _INDEX + varint(index) + delta
    if text:
        packed = text.encode()
        delta += _TEXT + varint(len(packed)) + packed
    event = _DELTA_OF_EVENT + varint(len(delta)) + delta
    return _EVENT_OF_RESPONSE + varint(len(event)) + event
