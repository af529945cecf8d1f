"""One open GGUF file (version 2 or 3, little-endian): scalar metadata and the table of tensors, data still mapped.

The `gguf` package's own reader makes an array object of each vocabulary entry, which takes seconds of every start;
arrays are stepped over here. Types, block sizes and dequantisation are the package's.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from gpu_worker.loading.errors import ModelLoadError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_ARRAY_DEPTH = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as it is stored."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    """In elements, output features first."""
    data: npt.NDArray[np.uint8]
    """[rows, bytes a row], a view of the mapped file; one row for a vector."""


class GgufFile:
    """A parsed GGUF file. Raises ModelLoadError when it is no GGUF or ends before its last tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelLoadError(path, f"cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise ModelLoadError(path, "truncated or not a GGUF file: it is empty") from None
        try:
            self._values, self.tensors = _Parser(memoryview(content)).parse()
        except (struct.error, ValueError, OverflowError) as error:
            raise ModelLoadError(path, f"truncated or not a GGUF file: {error}") from None

    def text(self, key: str) -> str | None:
        """A string value; None when the key is absent. Raises ModelLoadError for another type."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong_type(key, "a string")
        return value

    def integer(self, key: str) -> int | None:
        """An integer value; None when absent. Raises ModelLoadError for another type."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong_type(key, "an integer")
        return value

    def number(self, key: str) -> float | None:
        """An integer or floating-point value; None when absent. Raises ModelLoadError for another type."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self._wrong_type(key, "a number")
        return value

    def required_integer(self, key: str) -> int:
        """As `integer`, and absence is a ModelLoadError."""
        value = self.integer(key)
        if value is None:
            raise ModelLoadError(self.path, f"metadata lacks {key}")
        return value

    def _wrong_type(self, key: str, wanted: str) -> ModelLoadError:
        return ModelLoadError(self.path, f"metadata {key} is not {wanted}")


_Value = str | int | float | bool | None


class _Parser:
    """Reads a file from its start. Every fault is a struct.error or ValueError that says what is wrong."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._position = 0

    def parse(self) -> tuple[Mapping[str, _Value], Mapping[str, GgufTensor]]:
        if bytes(self._content[:4]) != b"GGUF":
            raise ValueError("no GGUF at its start")
        self._position = 4
        version = self._number("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, or of the other byte order")
        num_tensors, num_pairs = self._number("<Q"), self._number("<Q")
        values: dict[str, _Value] = {}
        for _ in range(num_pairs):
            key = self._string()
            values[key] = self._value(self._number("<I"))
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        start = -(-self._position // alignment) * alignment
        return values, {name: self._tensor(name, shape, kind, start + offset) for name, shape, kind, offset in table}

    def _number(self, layout: str) -> int:
        number: int = self._scalar(layout)
        return number

    def _scalar(self, layout: str) -> int:
        value: int
        (value,) = struct.unpack_from(layout, self._content, self._position)
        self._position += struct.calcsize(layout)
        return value

    def _take(self, num_bytes: int) -> memoryview:
        start, self._position = self._position, self._position + num_bytes
        if self._position > len(self._content):
            raise ValueError("it ends inside its metadata")
        return self._content[start : self._position]

    def _string(self) -> str:
        return str(self._take(self._number("<Q")), "utf-8")

    def _value(self, kind: int, depth: int = 0) -> _Value:
        """A scalar or string; None for an array, which is stepped over."""
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth > _MAX_ARRAY_DEPTH:
            raise ValueError(f"unknown metadata type {kind}")
        item_kind, count = self._number("<I"), self._number("<Q")
        if item_kind in _SCALARS:
            self._take(count * struct.calcsize(_SCALARS[item_kind]))
            return None
        for _ in range(count):
            if item_kind == _STRING:
                self._take(self._number("<Q"))
            else:
                self._value(item_kind, depth + 1)
        return None

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        num_dims = self._number("<I")
        if not 1 <= num_dims <= 4:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        # Stored with the fastest dimension first.
        shape = tuple(self._number("<Q") for _ in range(num_dims))[::-1]
        return name, shape, GGMLQuantizationType(self._number("<I")), self._number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, start: int) -> GgufTensor:
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_elements:
            raise ValueError(f"tensor {name}: rows of {shape[-1]} elements are no whole blocks of {kind.name}")
        row_bytes = shape[-1] // block_elements * block_bytes
        num_rows = math.prod(shape[:-1])
        end = start + num_rows * row_bytes
        if end > len(self._content):
            raise ValueError(f"it ends at byte {len(self._content)}, before tensor {name} does at byte {end}")
        data = np.frombuffer(self._content[start:end], np.uint8).reshape(num_rows, row_bytes)
        return GgufTensor(name, kind, shape, data)
