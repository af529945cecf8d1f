import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.runtime.model_source import ModelSource
from gateway.text.errors import ModelTextError
from gateway.text.gguf_metadata import read_gguf_metadata


def _everything(key: str) -> bool:
    return True


@pytest.fixture
def written(tmp_path: Path, write_gguf: Callable[..., ModelSource]) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf(path, tokens=["a", "é日"], scores=[0.5, -1.0], token_type=[1, 3], bos_token_id=7, add_bos_token=True)
    return path


def test_reads_scalars_strings_and_arrays(written: Path) -> None:
    found = read_gguf_metadata(written, _everything)
    assert found["general.architecture"] == "llama"
    assert found["tokenizer.ggml.tokens"] == ["a", "é日"]
    assert found["tokenizer.ggml.scores"] == [0.5, -1.0]
    assert found["tokenizer.ggml.token_type"] == [1, 3]
    assert found["tokenizer.ggml.bos_token_id"] == 7
    assert found["tokenizer.ggml.add_bos_token"] is True


def test_skips_what_is_not_asked_for(written: Path) -> None:
    assert read_gguf_metadata(written, lambda key: key.endswith("tokens")) == {"tokenizer.ggml.tokens": ["a", "é日"]}


def test_agrees_with_the_gguf_package(written: Path) -> None:
    from gguf import GGUFReader

    found = read_gguf_metadata(written, _everything)
    fields = {key: field for key, field in GGUFReader(written).fields.items() if not key.startswith("GGUF.")}
    assert found == {key: field.contents() for key, field in fields.items()}


def test_reads_the_built_in_model(built_in: ModelSource) -> None:
    found = read_gguf_metadata(built_in.path, _everything)
    assert found["tokenizer.ggml.pre"] == "smollm"
    assert found["llama.context_length"] == 8192
    tokens, merges = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    assert (len(tokens), len(merges)) == (49152, 48900)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "damaged or cut short"),
        (b"GGML" + bytes(20), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1), "damaged or cut short"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 4, 1 << 62), "damaged or cut short"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 99), "unknown value type 99"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelTextError, match=problem) as raised:
        read_gguf_metadata(path, _everything)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelTextError, match=r"absent\.gguf"):
        read_gguf_metadata(tmp_path / "absent.gguf", _everything)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., ModelSource]) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    write_gguf(path, tokens=["a", "b"], scores=[0.5, 1.0], model="gpt2")
    return path


@given(place=st.integers(0, 200), byte=st.integers(0, 255), wanted=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_changed_byte_gives_values_or_the_typed_error(
    small_file: Path, place: int, byte: int, wanted: bool
) -> None:
    content = bytearray(small_file.read_bytes())
    content[place % len(content)] = byte
    path = small_file.with_name("changed.gguf")
    path.write_bytes(content)
    try:
        found = read_gguf_metadata(path, lambda key: wanted)
    except ModelTextError:
        return
    assert isinstance(found, dict)
