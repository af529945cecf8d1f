"""One open GGUF file: typed metadata and the table of tensors. The `gguf` package parses it."""

from collections.abc import Mapping
from pathlib import Path

from gguf import GGUFReader, ReaderTensor

from gpu_worker.loading.errors import ModelLoadError


class GgufFile:
    """A parsed GGUF file whose tensor data stays mapped, not read.

    Raises ModelLoadError when the file cannot be read, is no GGUF, or ends before its last tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except OSError as error:
            raise ModelLoadError(path, f"cannot be read: {error.strerror or error}") from None
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
            raise ModelLoadError(path, f"truncated or not a GGUF file: {error}") from None
        self.tensors: Mapping[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}

    def text(self, key: str) -> str | None:
        """A string value; None when the key is absent. Raises ModelLoadError for another type."""
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong_type(key, "a string")
        return value

    def integer(self, key: str) -> int | None:
        """An integer value; None when absent. Raises ModelLoadError for another type."""
        value = self._value(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong_type(key, "an integer")
        return value

    def number(self, key: str) -> float | None:
        """An integer or floating-point value; None when absent. Raises ModelLoadError for another type."""
        value = self._value(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self._wrong_type(key, "a number")
        return value

    def required_integer(self, key: str) -> int:
        """As `integer`, and absence is a ModelLoadError."""
        value = self.integer(key)
        if value is None:
            raise ModelLoadError(self.path, f"metadata lacks {key}")
        return value

    def _value(self, key: str) -> object:
        field = self._reader.get_field(key)
        if field is None:
            return None
        value: object = field.contents()
        return value

    def _wrong_type(self, key: str, wanted: str) -> ModelLoadError:
        return ModelLoadError(self.path, f"metadata {key} is not {wanted}")
