"""What `--model` may name, and what is said when it names nothing."""

import struct
from pathlib import Path

import pytest

from chairlift.runtime.model_source import (
    BUILT_IN,
    ModelNotFoundError,
    ModelSource,
    SourceKind,
    fingerprint_model,
    resolve_model,
)


def _gguf(path: Path, pairs: dict[str, str], tail: bytes = b"") -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    body = b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in pairs.items())
    array = text("a.list") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("y")
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs) + 1) + body + array + tail)
    return path


def test_the_built_in_model_is_a_gguf() -> None:
    source = resolve_model(BUILT_IN)
    assert (source.name, source.kind) == (BUILT_IN, SourceKind.GGUF)
    assert source.path.read_bytes()[:4] == b"GGUF"
    assert len(fingerprint_model(source)) == 16


def test_a_folder_a_file_and_a_folder_with_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == ModelSource("llama", SourceKind.HUGGINGFACE, folder)
    other = tmp_path / "quantised"
    other.mkdir()
    file = _gguf(other / "m.Q8.gguf", {})
    assert resolve_model(str(file)) == ModelSource("m.Q8", SourceKind.GGUF, file)
    assert resolve_model(str(other)).path == file


def test_what_cannot_be_a_model_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"PK..")
    with pytest.raises(ModelNotFoundError, match=r"x\.bin: not a GGUF"):
        resolve_model(str(tmp_path / "x.bin"))
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json nor"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="no such folder or file"):
        resolve_model("nonsense")
    for name in ("a.gguf", "b.gguf"):
        _gguf(tmp_path / name, {})
    with pytest.raises(ModelNotFoundError, match="2 GGUF files"):
        resolve_model(str(tmp_path))


def test_a_hub_id_offline_is_a_clear_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="nobody/no-such-model: not on this machine"):
        resolve_model("nobody/no-such-model")


def test_the_fingerprint_is_of_the_tokenizer_and_not_of_weights(tmp_path: Path) -> None:
    one = _gguf(tmp_path / "1.gguf", {"tokenizer.chat_template": "t", "general.name": "n"}, b"weights")
    two = _gguf(tmp_path / "2.gguf", {"tokenizer.chat_template": "t", "general.name": "other"}, b"other weights")
    three = _gguf(tmp_path / "3.gguf", {"tokenizer.chat_template": "changed", "general.name": "n"}, b"weights")
    prints = [fingerprint_model(resolve_model(str(path))) for path in (one, two, three)]
    assert prints[0] == prints[1] != prints[2]


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    whole = _gguf(tmp_path / "w.gguf", {"k": "value"}).read_bytes()
    for length in (4, 20, 30, len(whole) - 1):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelNotFoundError):
            fingerprint_model(ModelSource("cut", SourceKind.GGUF, cut))


def test_huggingface_fingerprint_follows_the_template(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = resolve_model(str(tmp_path))
    before = fingerprint_model(source)
    (tmp_path / "model.safetensors").write_bytes(b"w")
    assert fingerprint_model(source) == before
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    assert fingerprint_model(source) != before
