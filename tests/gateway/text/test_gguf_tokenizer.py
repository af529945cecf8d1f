"""Tokenizers from GGUF metadata, against transformers' own reading of the same files."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from tokenizers import pre_tokenizers

from chairlift.runtime.model_source import ModelSource
from gateway.text.errors import ModelTextError
from gateway.text.model_text import ModelText, load_model_text
from gateway.text.pre_tokenizers import PRE_TOKENIZERS

CORPUS = [
    "",
    "Hello world",
    "I'm sure YOU'LL see it's 12345.67 or 1,000,000",
    "emoji 👩‍👩‍👧‍👦 🎉🇩🇪 ok",
    "日本語のテキスト 한국어 中文字符 ไทย العربية עברית",
    "def f(x):\n\treturn  x**2  # c\n\n\nclass A:\r\n    pass\r\n",
    "   lead  and trail   ",
    "\t\t\n \r\n x\u00a0y\u3000z\u2028w\u200b",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>x<file_sep>",
    "<|im_end <|im_end| > <<|im_end|>>",
    "a" * 3000,
    "ﬁ ½ ① Ⅷ ४५६ e\u0301 \u0301",
    "\x00\x01\x04\x7f",
    "\ufdd0 \ufdd0\ufdd1 \ufdd0\ufdd2 \ufdd3\ufdd4 \uffff",
    '{"a": [1, 2.5, null], "b": "\\u00e9"}',
]


def _random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    pool = "aZé日😀 \n\t0९<|>_'sтю.!\u3000\u200d"
    return ["".join(rng.choice(pool) for _ in range(rng.randint(1, 40))) for _ in range(count)]


class _Reference(NamedTuple):
    tokenizer: Any
    """transformers' tokenizer of the built-in model, cutting digits apart."""
    as_it_is: dict[str, list[int]]
    """Ids of the corpus before digits were cut apart."""


@pytest.fixture(scope="module")
def loaded(built_in: ModelSource, quick_gguf: Any) -> _Reference:
    """transformers does not know the file's pre-tokenizer (``smollm``) and falls back to GPT-2's, which keeps digits
    together; SmolLM's own tokenizer.json cuts them apart first."""
    with quick_gguf():
        tokenizer = transformers.AutoTokenizer.from_pretrained(built_in.path.parent, gguf_file=built_in.path.name)
    as_it_is = {text: tokenizer(text)["input_ids"] for text in CORPUS}
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return _Reference(tokenizer, as_it_is)


@pytest.fixture
def reference(loaded: _Reference) -> Any:
    return loaded.tokenizer


@pytest.mark.parametrize("text", CORPUS)
def test_built_in_model_equals_transformers(smollm: ModelText, reference: Any, text: str) -> None:
    ids = smollm.tokenizer.encode_prompt(text)
    assert ids == reference(text)["input_ids"]
    assert smollm.tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert smollm.tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids)


def test_built_in_model_equals_transformers_on_random_text(smollm: ModelText, reference: Any) -> None:
    for text in _random_texts(1, 500):
        ids = smollm.tokenizer.encode_prompt(text)
        assert ids == reference(text)["input_ids"], text
        assert smollm.tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True), text


def test_built_in_model_equals_transformers_as_it_is_without_digits(smollm: ModelText, loaded: _Reference) -> None:
    for text, ids in loaded.as_it_is.items():
        if not any(character.isnumeric() for character in text):
            assert smollm.tokenizer.encode_prompt(text) == ids, text


def test_built_in_model_names_its_tokens(smollm: ModelText) -> None:
    assert smollm.special_tokens["bos_token"] == "<|im_start|>"
    assert smollm.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm.tokenizer.vocab_size == 49152
    assert smollm.tokenizer.piece(2) == b"<|im_end|>"
    assert 2 in smollm.tokenizer.table.special_ids
    assert smollm.tokenizer.piece(10**6) == b""


def test_pieces_spell_every_token_of_the_built_in_model(smollm: ModelText, reference: Any) -> None:
    for token_id in range(smollm.tokenizer.vocab_size):
        piece = smollm.tokenizer.piece(token_id)
        assert piece.decode("utf-8", "replace") == reference.decode([token_id])


def _tiny(pre: str) -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "Ġa", "12", "bos", "eos", "<|stop|>", "<think>"]
    kinds = [1] * (len(alphabet) + 2) + [3, 3, 3, 4]
    merges = ["Ġ a", "1 2"]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}


def test_digits_are_cut_as_each_rule_says(tmp_path: Path, write_gguf: Callable[..., ModelSource]) -> None:
    whole = {"gpt-2", "olmo", "default"}
    cut = {"smollm", "qwen2", "starcoder", "tekken"}
    for pre in PRE_TOKENIZERS:
        tokenizer = load_model_text(write_gguf(tmp_path / f"{pre}.gguf", **_tiny(pre))).tokenizer
        pieces = [tokenizer.piece(token_id) for token_id in tokenizer.encode_prompt("12 a")]
        if pre in whole:
            assert pieces == [b"12", b" a"]
        if pre in cut:
            assert pieces == [b"1", b"2", b" a"]
        assert tokenizer.decode(tokenizer.encode_prompt("12 é日\n")) == "12 é日\n"


def test_bos_and_eos_are_added_as_the_file_says(tmp_path: Path, write_gguf: Callable[..., ModelSource]) -> None:
    base = _tiny("gpt-2")
    bos, eos, a = base["tokens"].index("bos"), base["tokens"].index("eos"), base["tokens"].index("a")
    base |= {"bos_token_id": bos, "eos_token_id": eos}
    for name, extra, expected in (
        ("silent", {}, [a]),
        ("bos", {"add_bos_token": True}, [bos, a]),
        ("both", {"add_bos_token": True, "add_eos_token": True}, [bos, a, eos]),
        ("llama3 by default", {"pre": "llama-bpe"}, [bos, a]),
        ("llama3, told not to", {"pre": "llama-bpe", "add_bos_token": False}, [a]),
    ):
        tokenizer = load_model_text(write_gguf(tmp_path / f"{name}.gguf", **(base | extra))).tokenizer
        assert tokenizer.encode_prompt("a") == expected, name
        assert tokenizer.encode_rendered("a") == [a], name


def test_user_defined_tokens_are_text_and_control_tokens_are_not(
    tmp_path: Path, write_gguf: Callable[..., ModelSource]
) -> None:
    tokenizer = load_model_text(write_gguf(tmp_path / "m.gguf", **_tiny("gpt-2"))).tokenizer
    ids = tokenizer.encode_prompt("<think>a<|stop|>")
    assert [tokenizer.piece(token_id) for token_id in ids] == [b"<think>", b"a", b"<|stop|>"]
    assert tokenizer.decode(ids) == "<think>a"


def test_sentencepiece_vocabulary_equals_transformers(
    tmp_path: Path, write_gguf: Callable[..., ModelSource], spm_vocabulary: dict[str, list[Any]]
) -> None:
    """Text without a leading space: there the two readings of SentencePiece's prefix are the same."""
    source = write_gguf(
        tmp_path / "spm.gguf", model="llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0, **spm_vocabulary
    )
    ours = load_model_text(source).tokenizer
    reference = transformers.AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
    rng = random.Random(3)
    pool = "helo wrdins</>[]ST.é日😀\n"
    texts = ["hello world", "é日😀\x00", "[INST] hello", "a<think>b", ""]
    texts += ["h" + "".join(rng.choice(pool) for _ in range(rng.randint(0, 40))) for _ in range(300)]
    for text in texts:
        ids = ours.encode_prompt(text)
        if "[INST]" not in text and "<think>" not in text:
            assert ids == reference(text)["input_ids"], text
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True), text


def test_sentencepiece_prefix_comes_before_each_text_between_special_tokens(spm: ModelText) -> None:
    pieces = [spm.tokenizer.piece(token_id) for token_id in spm.tokenizer.encode_prompt("hello[INST]hello")]
    assert pieces == [b"<s>", b" hello", b"[INST]", b" hello"]


def test_sentencepiece_without_prefix(
    tmp_path: Path, write_gguf: Callable[..., ModelSource], spm_vocabulary: dict[str, list[Any]]
) -> None:
    source = write_gguf(tmp_path / "spm.gguf", model="llama", add_space_prefix=False, **spm_vocabulary)
    tokenizer = load_model_text(source).tokenizer
    ids = tokenizer.encode_prompt("hello world")
    assert [tokenizer.piece(token_id) for token_id in ids] == [b"hello", b" world"]
    assert tokenizer.decode(tokenizer.encode_prompt(" hello")) == " hello"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "bert"}, "kind 'bert'"),
        ({"model": ""}, "kind ''"),
        ({"pre": "unheard-of"}, "pre-tokenizer 'unheard-of' is not known"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "occurs twice"),
        ({"token_type": [1]}, "do not match the number of tokens"),
        ({"merges": ["q never-a-token"]}, "merges do not fit"),
        ({"tokenizer.chat_template": "{% for %}"}, "chat template cannot be parsed"),
        ({"tokenizer.chat_template": 5}, "unexpected type"),
        ({"tokens": [1, 2]}, "not strings"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, write_gguf: Callable[..., ModelSource], change: dict[str, Any], problem: str
) -> None:
    source = write_gguf(tmp_path / "odd.gguf", **(_tiny("gpt-2") | change))
    with pytest.raises(ModelTextError, match=problem) as raised:
        load_model_text(source)
    assert "odd.gguf" in str(raised.value)


def test_a_file_without_vocabulary_is_refused(tmp_path: Path, write_gguf: Callable[..., ModelSource]) -> None:
    with pytest.raises(ModelTextError, match="no vocabulary"):
        load_model_text(write_gguf(tmp_path / "none.gguf", model="gpt2"))
