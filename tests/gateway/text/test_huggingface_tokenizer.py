"""Tokenizers from Hugging Face folders that the tests write, against transformers on the same folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chairlift.runtime.model_source import ModelSource, SourceKind
from gateway.text.errors import ModelTextError
from gateway.text.model_text import ModelText, load_model_text

_TRAINING = ["hello world, how are you? it's 12 o'clock", "日本語のテキスト é ü 😀", "def f(x):\n    return x"] * 3
_TEXTS = ["hello world", " hello", "日本 é 😀 \x00", "a<think>b</think>", "x<|eot|>y", "it's 12\n\n", "", "zzz\t\r\n"]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(_TRAINING, trainer)
    tokenizer.add_special_tokens([AddedToken("<|bos|>", special=True), AddedToken("<|eot|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<|bos|>", "<|eot|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special)
    tokenizer.train_from_iterator(_TRAINING, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return Tokenizer.from_str(json.dumps(_without_bytes_as_special(json.loads(tokenizer.to_str()))))


def _without_bytes_as_special(content: dict[str, Any]) -> dict[str, Any]:
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    return content


def _write(folder: Path, tokenizer: Tokenizer, **config: Any) -> ModelSource:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eot|>"} | config
        )
    )
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return ModelSource("test", SourceKind.HUGGINGFACE, folder)


@pytest.mark.parametrize("make", [_byte_level, _metaspace])
@pytest.mark.parametrize("around", [["$A"], ["<|bos|>", "$A"], ["<|bos|>", "$A", "<|eot|>"]])
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_equals_transformers(tmp_path: Path, make: Any, around: list[str], flags: dict[str, bool]) -> None:
    tokenizer = make()
    used = [(token, tokenizer.token_to_id(token)) for token in around if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, pair=None, special_tokens=used)
    source = _write(tmp_path / "model", tokenizer, **flags)
    ours = load_model_text(source).tokenizer
    reference = transformers.AutoTokenizer.from_pretrained(source.path)
    for text in _TEXTS:
        ids = ours.encode_prompt(text)
        assert ids == reference(text)["input_ids"], text
        assert ours.encode_rendered(text) == reference(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, skip_special_tokens=False) == reference.decode(ids), text


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path: Path) -> None:
    tokenizer = _byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    ids = load_model_text(_write(tmp_path / "m", tokenizer)).tokenizer.encode_prompt("hello world, how are you?")
    assert 2 < len(ids) < 64


def test_tokens_that_only_the_configuration_lists_are_added(tmp_path: Path) -> None:
    tokenizer = _byte_level()
    new = tokenizer.get_vocab_size()
    listed = {str(new): {"content": "<|extra|>", "special": True}}
    ours = load_model_text(_write(tmp_path / "m", tokenizer, added_tokens_decoder=listed)).tokenizer
    assert ours.encode_prompt("<|extra|>") == [new]
    with pytest.raises(ModelTextError, match="does not fit"):
        load_model_text(_write(tmp_path / "m", tokenizer, added_tokens_decoder={"9999": {"content": "<|extra|>"}}))
    with pytest.raises(ModelTextError, match="no id"):
        load_model_text(_write(tmp_path / "m", tokenizer, added_tokens_decoder={"x": {"content": "<|extra|>"}}))


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    source = _write(tmp_path / "m", _byte_level(), chat_template="from the configuration")
    assert load_model_text(source).template_source == "from the configuration"
    (source.path / "chat_template.jinja").write_text("from the file")
    assert load_model_text(source).template_source == "from the file"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}], "D"),
        ([{"name": "tool_use", "template": "T"}], None),
        (None, None),
    ],
)
def test_of_several_templates_the_default_one_is_taken(tmp_path: Path, template: Any, expected: str | None) -> None:
    assert load_model_text(_write(tmp_path / "m", _byte_level(), chat_template=template)).template_source == expected


def test_a_special_token_that_is_matched_late_is_matched_early(tmp_path: Path) -> None:
    """With ``normalized: true`` a special token would be looked for after user text has been unsealed."""
    content = json.loads(_byte_level().to_str())
    for token in content["added_tokens"]:
        token["normalized"] = True
    text = load_model_text(_write(tmp_path / "m", Tokenizer.from_str(json.dumps(content)), chat_template="{{ 1 }}"))
    assert text.guards is not None
    sealed = text.guards.seal(text.guards.mark("<|eot|>", "user"))
    eot = text.tokenizer.token_id("<|eot|>")
    assert eot not in text.tokenizer.encode_rendered(sealed)
    assert text.tokenizer.encode_rendered("<|eot|>") == [eot]


def _folder_with(folder: Path, name: str, content: str) -> ModelSource:
    source = _write(folder, _byte_level())
    (source.path / name).write_text(content)
    return source


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", "tokenizer.json: cannot be read"),
        ("tokenizer.json", "[]", "tokenizer.json: cannot be read"),
        ("tokenizer.json", '{"decoder": {"type": "WordPiece"}}', "decoder .'WordPiece'. is not known"),
        ("tokenizer.json", '{"decoder": null}', "decoder null is not known"),
        ("tokenizer.json", '{"decoder": {"type": "ByteLevel"}}', "not a tokenizer that can be built"),
        ("tokenizer_config.json", '{"bos_token": 3}', "tokenizer_config.json"),
        ("chat_template.jinja", "{{ unclosed", "chat_template.jinja: its chat template cannot be parsed"),
        ("chat_template.jinja", "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "cannot be parsed"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, name: str, content: str, problem: str) -> None:
    with pytest.raises(ModelTextError, match=problem):
        load_model_text(_folder_with(tmp_path / "m", name, content))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelTextError, match=r"tokenizer\.json: is missing"):
        load_model_text(ModelSource("m", SourceKind.HUGGINGFACE, tmp_path))


def test_named_tokens_are_those_of_the_configuration(tmp_path: Path) -> None:
    source = _write(tmp_path / "m", _byte_level(), pad_token={"content": "<|eot|>", "__type": "AddedToken"})
    text: ModelText = load_model_text(source)
    assert text.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eot|>", "pad_token": "<|eot|>"}
