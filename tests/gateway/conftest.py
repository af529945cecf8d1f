"""Models for the gateway's tests: the built-in one, and small ones that are written here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import pre_tokenizers

from chairlift.runtime.model_source import BUILT_IN, ModelSource, SourceKind, resolve_model
from gateway.text.model_text import ModelText, load_model_text

CONTROL, USER_DEFINED, UNKNOWN, NORMAL, BYTE = 3, 4, 2, 1, 6


@pytest.fixture(scope="session")
def built_in() -> ModelSource:
    return resolve_model(BUILT_IN)


@pytest.fixture(scope="session")
def smollm(built_in: ModelSource) -> ModelText:
    return load_model_text(built_in)


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., ModelSource]:
    """Writes the metadata of a GGUF file: `write_gguf(path, model=…, tokens=…, …)`."""

    def write(path: Path, **values: Any) -> ModelSource:
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in values.items():
            name = key if key.startswith("tokenizer.") else f"tokenizer.ggml.{key}"
            match value:
                case bool():
                    writer.add_bool(name, value)
                case int():
                    writer.add_uint32(name, value)
                case str():
                    writer.add_string(name, value)
                case list():
                    writer.add_array(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return ModelSource("test", SourceKind.GGUF, path)

    return write


@pytest.fixture(scope="session")
def spm_vocabulary() -> dict[str, list[Any]]:
    """A small SentencePiece-like vocabulary with byte fallback."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    scores = [0.0] * len(tokens)
    merged = ["he", "ll", "llo", "hello", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "in", "▁in", "</", "s>"]
    for rank, token in enumerate(merged):
        tokens.append(token)
        kinds.append(NORMAL)
        scores.append(-float(rank))
    for character in "▁helowrdins</>[]IST.é日":
        tokens.append(character)
        kinds.append(NORMAL)
        scores.append(-1000.0)
    for token, kind in (("[INST]", CONTROL), ("<think>", USER_DEFINED)):
        tokens.append(token)
        kinds.append(kind)
        scores.append(0.0)
    return {"tokens": tokens, "token_type": kinds, "scores": scores}


@pytest.fixture(scope="session")
def spm(
    tmp_path_factory: pytest.TempPathFactory,
    write_gguf: Callable[..., ModelSource],
    spm_vocabulary: dict[str, list[Any]],
) -> ModelText:
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    return load_model_text(
        write_gguf(path, model="llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0, **spm_vocabulary)
    )


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
    "{% if messages[0].role == 'nobody' %}{{ raise_exception('nobody may not speak') }}{% endif %}"
)


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., ModelSource]) -> ModelSource:
    """A model whose tokens are the 256 bytes (id = place in the sorted byte alphabet), two special ones and "the"."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "the", "<|start|>", "<|end|>"]
    kinds = [NORMAL] * 257 + [CONTROL] * 2
    path = tmp_path_factory.mktemp("bytes") / "bytes.gguf"
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds, "merges": ["t h", "th e"]}
    values["tokens"] = [*tokens, "th"]
    values["token_type"] = [*kinds, NORMAL]
    return write_gguf(path, eos_token_id=258, **values, **{"tokenizer.chat_template": CHAT_TEMPLATE})


@pytest.fixture(scope="session")
def byte_text(byte_model: ModelSource) -> ModelText:
    return load_model_text(byte_model)
