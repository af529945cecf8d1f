"""What the gateway needs of a model: its tokenizer, its chat template and the names of its special tokens."""

from pathlib import Path
from typing import Any

import jinja2
import msgspec

from chairlift.runtime.model_source import ModelSource, SourceKind
from gateway.text.chat_template import TemplateText, read_template
from gateway.text.errors import ModelTextError
from gateway.text.gguf_tokenizer import GgufVocabulary, build_gguf_tokenizer, read_gguf_vocabulary
from gateway.text.huggingface_tokenizer import (
    TokenizerConfig,
    build_huggingface_tokenizer,
    read_json,
    read_tokenizer_config,
)
from gateway.text.tokenizer import ChatGuards, TextTokenizer


class ModelText(msgspec.Struct, frozen=True):
    """One model's text side. Without a chat template the three template fields are empty."""

    tokenizer: TextTokenizer
    special_tokens: dict[str, str]
    """By the names that templates use, such as ``bos_token``."""
    template_source: str | None
    template: TemplateText | None
    guards: ChatGuards | None


def load_model_text(source: ModelSource) -> ModelText:
    """Reads tokenizer and template; no weights. Raises ModelTextError, which names the file at fault."""
    match source.kind:
        case SourceKind.GGUF:
            vocabulary = read_gguf_vocabulary(source.path)
            tokenizer = build_gguf_tokenizer(vocabulary)
            names, template, template_path = _gguf_names(vocabulary), vocabulary.chat_template, source.path
        case SourceKind.HUGGINGFACE:
            config = read_tokenizer_config(source.path)
            tokenizer = build_huggingface_tokenizer(source.path, config)
            names = config.named_tokens()
            template, template_path = _huggingface_template(source.path, config)
    if template is None:
        return ModelText(tokenizer, names, None, None, None)
    try:
        text = read_template(template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ModelTextError(template_path, f"its chat template cannot be parsed: {error}") from None
    return ModelText(tokenizer, names, template, text, tokenizer.guards(text.literals))


def _gguf_names(vocabulary: GgufVocabulary) -> dict[str, str]:
    ids = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "unk_token": vocabulary.unk_id,
        "pad_token": vocabulary.pad_id,
    }
    return {name: vocabulary.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def _huggingface_template(folder: Path, config: TokenizerConfig) -> tuple[str | None, Path]:
    """A file of its own goes before the tokenizer's configuration, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise ModelTextError(path, f"cannot be read ({error})") from None
    path = folder / "chat_template.json"
    if config.chat_template is None and path.is_file():
        template = read_json(path, dict[str, Any]).get("chat_template")
        return (template if isinstance(template, str) else None), path
    return config.default_template(), folder / "tokenizer_config.json"
