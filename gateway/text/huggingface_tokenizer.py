"""Builds a tokenizer from the files of a Hugging Face folder, as transformers would.

``tokenizer.json`` is the tokenizer; its post-processor says whether BOS and EOS are put around a prompt, whatever the
configuration's ``add_bos_token`` says, as in transformers since version 5. ``tokenizer_config.json`` adds tokens and
names the special ones that templates use.
"""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from gateway.text.errors import ModelTextError
from gateway.text.token_table import Spelling
from gateway.text.tokenizer import TextTokenizer

TOKENIZER_FILE = "tokenizer.json"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class _TokenSpec(msgspec.Struct):
    content: str
    special: bool = True
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class TokenizerConfig(msgspec.Struct):
    """What is read of ``tokenizer_config.json``; everything else in it is for training or for other code."""

    bos_token: str | _TokenSpec | None = None
    eos_token: str | _TokenSpec | None = None
    unk_token: str | _TokenSpec | None = None
    pad_token: str | _TokenSpec | None = None
    sep_token: str | _TokenSpec | None = None
    cls_token: str | _TokenSpec | None = None
    mask_token: str | _TokenSpec | None = None
    added_tokens_decoder: dict[str, _TokenSpec] = {}
    chat_template: str | list[_NamedTemplate] | None = None

    def named_tokens(self) -> dict[str, str]:
        """Special tokens by the names that templates use, as transformers hands them over."""
        found = {}
        for name in _NAMED_TOKENS:
            token = getattr(self, name)
            if token is not None:
                found[name] = token if isinstance(token, str) else token.content
        return found

    def default_template(self) -> str | None:
        """The template without a name, or the one named ``default``."""
        if isinstance(self.chat_template, list):
            return next((each.template for each in self.chat_template if each.name == "default"), None)
        return self.chat_template


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """The folder's configuration, with the older ``special_tokens_map.json`` under it. Raises ModelTextError."""
    raw: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            raw |= {key: item for key, item in read_json(path, dict[str, Any]).items() if item is not None}
    try:
        return msgspec.convert(raw, TokenizerConfig)
    except msgspec.ValidationError as error:
        raise ModelTextError(folder / "tokenizer_config.json", str(error)) from None


def build_huggingface_tokenizer(folder: Path, config: TokenizerConfig) -> TextTokenizer:
    """The tokenizer of `folder`. Raises ModelTextError, naming the file, for what cannot be read or is not known."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ModelTextError(path, "is missing (a model needs its tokenizer in the `tokenizers` library's format)")
    content = read_json(path, dict[str, Any])
    spelling = _spelling(path, content)
    _recognise_special_tokens_first(content)
    try:
        tokenizer = Tokenizer.from_str(msgspec.json.encode(content).decode())
    except Exception as error:  # noqa: BLE001  # the binding raises bare Exception for whatever it cannot parse
        raise ModelTextError(path, f"is not a tokenizer that can be built ({error})") from None
    _add_configured_tokens(tokenizer, config, folder)
    return TextTokenizer(tokenizer, spelling, path)


def read_json(path: Path, kind: type[Any]) -> Any:
    """A JSON file as `kind`. Raises ModelTextError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ModelTextError(path, f"cannot be read ({error})") from None


def _spelling(path: Path, content: dict[str, Any]) -> Spelling:
    """How the tokenizer's decoder turns tokens into bytes."""
    decoder = content.get("decoder")
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return Spelling(byte_level=True)
    if "ByteFallback" in kinds:
        strips = any(s.get("type") == "Strip" and s.get("content") == " " and s.get("start", 0) > 0 for s in steps)
        return Spelling(byte_level=False, strips_leading_space=strips)
    if kinds == ["Metaspace"]:
        return Spelling(byte_level=False, strips_leading_space=steps[0].get("prepend_scheme", "always") != "never")
    raise ModelTextError(
        path, f"its decoder {kinds or 'null'} is not known; known are ByteLevel, ByteFallback, Metaspace"
    )


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for step in decoder.get("decoders", []) if isinstance(step, dict)]
    return [decoder]


def _recognise_special_tokens_first(content: dict[str, Any]) -> None:
    """Special tokens are looked for before normalisation, which is where `special_text` keeps user text apart."""
    for token in content.get("added_tokens") or []:
        if isinstance(token, dict) and token.get("special"):
            token["normalized"] = False


def _add_configured_tokens(tokenizer: Tokenizer, config: TokenizerConfig, folder: Path) -> None:
    """Tokens that only the configuration lists; each must get the id that it is listed with."""
    known = tokenizer.get_added_tokens_decoder()
    try:
        listed = sorted((int(key), spec) for key, spec in config.added_tokens_decoder.items() if int(key) not in known)
    except ValueError:
        raise ModelTextError(folder / "tokenizer_config.json", "added_tokens_decoder has a key that is no id") from None
    for token_id, spec in listed:
        token = AddedToken(
            spec.content,
            single_word=spec.single_word,
            lstrip=spec.lstrip,
            rstrip=spec.rstrip,
            normalized=spec.normalized and not spec.special,
            special=spec.special,
        )
        if spec.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
        if tokenizer.token_to_id(spec.content) != token_id:
            raise ModelTextError(
                folder / "tokenizer_config.json",
                f"token {token_id} of added_tokens_decoder does not fit tokenizer.json",
            )
