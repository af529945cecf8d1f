"""Reads the key-value part of a GGUF file, and only the keys that are asked for.

The `gguf` package maps every value to numpy arrays first and takes seconds for a large vocabulary; a gateway needs a
few keys at every start. Format: ggml's GGUF specification, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from gateway.text.errors import ModelTextError

MetadataValue: TypeAlias = "int | float | bool | str | list[int] | list[float] | list[bool] | list[str]"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ARRAY_HEADER = struct.Struct("<IQ")
_MAX_DEPTH = 4


def read_gguf_metadata(path: Path, wanted: Callable[[str], bool]) -> dict[str, MetadataValue]:
    """The values whose key `wanted` accepts. Raises ModelTextError on a file that is not a whole GGUF header."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_pairs(path, data, wanted)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
        raise ModelTextError(path, f"its metadata is damaged or cut short ({error})") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ModelTextError):
            raise
        raise ModelTextError(path, f"cannot be read ({error})") from None


def _read_pairs(path: Path, data: mmap.mmap, wanted: Callable[[str], bool]) -> dict[str, MetadataValue]:
    magic, version, _, num_pairs = _HEADER.unpack_from(data, 0)
    if magic != b"GGUF":
        raise ModelTextError(path, "is not a GGUF file")
    if version not in (2, 3):
        raise ModelTextError(path, f"is GGUF of version {version} or big-endian; 2 and 3, little-endian, can be read")
    values: dict[str, MetadataValue] = {}
    position = _HEADER.size
    for _ in range(num_pairs):
        key, position = _read_string(data, position)
        (kind,) = _U32.unpack_from(data, position)
        position += 4
        if wanted(key):
            values[key], position = _read_value(data, position, kind)
        else:
            position = _skip_value(data, position, kind, _MAX_DEPTH)
    return values


def _read_string(data: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = _U64.unpack_from(data, position)
    start, end = position + 8, position + 8 + length
    if end > len(data):
        raise struct.error("a string reaches past the end of the file")
    return data[start:end].decode("utf-8"), end


def _read_value(data: mmap.mmap, position: int, kind: int) -> tuple[MetadataValue, int]:
    if kind == _STRING:
        return _read_string(data, position)
    if kind == _ARRAY:
        return _read_array(data, position)
    scalar = struct.Struct("<" + _scalar(kind))
    (value,) = scalar.unpack_from(data, position)
    return value, position + scalar.size


def _read_array(data: mmap.mmap, position: int) -> tuple[MetadataValue, int]:
    kind, count = _ARRAY_HEADER.unpack_from(data, position)
    position += _ARRAY_HEADER.size
    if kind == _STRING:
        strings = []
        for _ in range(count):
            text, position = _read_string(data, position)
            strings.append(text)
        return strings, position
    code = _scalar(kind)
    size = struct.calcsize("<" + code)
    if position + count * size > len(data):
        raise struct.error("an array reaches past the end of the file")
    return list(struct.unpack_from(f"<{count}{code}", data, position)), position + count * size


def _skip_value(data: mmap.mmap, position: int, kind: int, depth: int) -> int:
    if kind == _STRING:
        (length,) = _U64.unpack_from(data, position)
        end = position + 8 + int(length)
    elif kind == _ARRAY:
        item_kind, count = _ARRAY_HEADER.unpack_from(data, position)
        end = position + _ARRAY_HEADER.size
        if item_kind in _SCALARS:
            end += int(count) * struct.calcsize("<" + _SCALARS[item_kind])
        elif depth == 0:
            raise struct.error("arrays are nested too deeply")
        else:
            for _ in range(count):
                end = _skip_value(data, end, item_kind, depth - 1)
    else:
        end = position + struct.calcsize("<" + _scalar(kind))
    if end > len(data):
        raise struct.error("a value reaches past the end of the file")
    return end


def _scalar(kind: int) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise struct.error(f"unknown value type {kind}")
    return code
