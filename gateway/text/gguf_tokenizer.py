"""Builds a tokenizer from the metadata of a GGUF file.

Two kinds exist among Llama-family models: byte-level BPE (``tokenizer.ggml.model = gpt2``) and SentencePiece BPE with
byte fallback (``llama``). Anything else is refused with the file's name. The rules follow ggml's GGUF specification
and what the original models' tokenizer.json say.
"""

import enum
from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from gateway.text.errors import ModelTextError
from gateway.text.gguf_metadata import MetadataValue, read_gguf_metadata
from gateway.text.pre_tokenizers import PRE_TOKENIZERS, build_pre_tokenizer
from gateway.text.token_table import BYTE_TOKENS, SPACE_MARK, Spelling
from gateway.text.tokenizer import TextTokenizer

_KEYS = frozenset({"tokenizer.chat_template", "general.architecture"})
ValueT = TypeVar("ValueT", bound="MetadataValue")


class _TokenKind(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocabulary(msgspec.Struct, frozen=True):
    """What a GGUF file says of its tokens."""

    path: Path
    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


def read_gguf_vocabulary(path: Path) -> GgufVocabulary:
    """Reads and checks the file's vocabulary. Raises ModelTextError."""
    found = read_gguf_metadata(path, lambda key: key.startswith("tokenizer.ggml.") or key in _KEYS)

    def value(key: str, kind: type[ValueT]) -> ValueT | None:
        item = found.get(key)
        if item is not None and not isinstance(item, kind):
            raise ModelTextError(path, f"{key} has an unexpected type")
        return item

    tokens = _strings(path, value("tokenizer.ggml.tokens", list))
    if not tokens:
        raise ModelTextError(path, "holds no vocabulary (tokenizer.ggml.tokens)")
    if len(set(tokens)) != len(tokens):
        raise ModelTextError(path, "a token occurs twice in tokenizer.ggml.tokens")
    kinds = value("tokenizer.ggml.token_type", list) or [_TokenKind.NORMAL] * len(tokens)
    scores = value("tokenizer.ggml.scores", list) or [0.0] * len(tokens)
    if len(kinds) != len(tokens) or len(scores) != len(tokens):
        raise ModelTextError(path, "token types or scores do not match the number of tokens")

    def token_id(name: str) -> int | None:
        number = value(f"tokenizer.ggml.{name}_token_id", int)
        return number if number is not None and 0 <= number < len(tokens) else None

    prefix = value("tokenizer.ggml.add_space_prefix", bool)
    return GgufVocabulary(
        path=path,
        model=value("tokenizer.ggml.model", str) or "",
        pre=value("tokenizer.ggml.pre", str) or "default",
        tokens=tokens,
        kinds=[int(kind) for kind in kinds],
        scores=[float(score) for score in scores],
        merges=_strings(path, value("tokenizer.ggml.merges", list)),
        bos_id=token_id("bos"),
        eos_id=token_id("eos"),
        unk_id=token_id("unknown"),
        pad_id=token_id("padding"),
        add_bos=value("tokenizer.ggml.add_bos_token", bool),
        add_eos=bool(value("tokenizer.ggml.add_eos_token", bool)),
        add_space_prefix=prefix is not False,
        chat_template=value("tokenizer.chat_template", str),
    )


def build_gguf_tokenizer(vocabulary: GgufVocabulary) -> TextTokenizer:
    """The tokenizer that the vocabulary describes. Raises ModelTextError for a kind that is not known."""
    match vocabulary.model:
        case "gpt2":
            tokenizer, spelling, add_bos = *_byte_level(vocabulary), PRE_TOKENIZERS[vocabulary.pre].add_bos
        case "llama":
            tokenizer, spelling, add_bos = *_sentencepiece(vocabulary), True
        case other:
            raise ModelTextError(
                vocabulary.path, f"its tokenizer is of kind {other!r}; known kinds are gpt2 (byte-level BPE) and llama"
            )
    _add_tokens(tokenizer, vocabulary)
    if vocabulary.add_bos is not None:
        add_bos = vocabulary.add_bos
    _add_bos_and_eos(tokenizer, vocabulary, add_bos=add_bos)
    return TextTokenizer(tokenizer, spelling, vocabulary.path)


def _byte_level(vocabulary: GgufVocabulary) -> tuple[Tokenizer, Spelling]:
    rule = PRE_TOKENIZERS.get(vocabulary.pre)
    if rule is None:
        raise ModelTextError(
            vocabulary.path,
            f"its pre-tokenizer {vocabulary.pre!r} is not known; known are {', '.join(sorted(PRE_TOKENIZERS))}",
        )
    # The first character of a pair may itself be a space in a damaged file: cut at the first space after it.
    merges = [(pair[:cut], pair[cut + 1 :]) for pair in vocabulary.merges if (cut := pair.find(" ", 1)) > 0]
    model = _bpe(vocabulary, merges, ignore_merges=rule.ignore_merges)
    tokenizer = Tokenizer(model)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = build_pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, Spelling(byte_level=True)


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[Tokenizer, Spelling]:
    unknown = next(
        (t for t, k in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if k == _TokenKind.UNKNOWN), None
    )
    known = set(vocabulary.tokens)
    model = _bpe(
        vocabulary,
        _merges_by_score(vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=known.issuperset(BYTE_TOKENS),
    )
    tokenizer = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    ends: list[decoders.Decoder] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        # Before each stretch of text between special tokens, as SentencePiece does for each text that it is given.
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer, Spelling(byte_level=False, strips_leading_space=vocabulary.add_space_prefix)


def _bpe(vocabulary: GgufVocabulary, merges: list[tuple[str, str]], **options: object) -> models.BPE:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    try:
        return models.BPE(vocab=ids, merges=merges, **options)
    except Exception as error:  # noqa: BLE001  # the binding raises bare Exception for a merge outside the vocabulary
        raise ModelTextError(vocabulary.path, f"its merges do not fit its vocabulary ({error})") from None


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best score first: SentencePiece keeps scores, not merges."""
    mergeable = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True)
        if kind == _TokenKind.NORMAL
    }
    found = []
    for token, score in mergeable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                found.append((-score, left, right))
    found.sort(key=lambda merge: (merge[0], -len(merge[1])))
    return [(left, right) for _, left, right in found]


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    special, plain = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in (_TokenKind.CONTROL, _TokenKind.UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == _TokenKind.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_bos_and_eos(tokenizer: Tokenizer, vocabulary: GgufVocabulary, *, add_bos: bool) -> None:
    template, used = ["$A"], []
    if add_bos and vocabulary.bos_id is not None:
        bos = vocabulary.tokens[vocabulary.bos_id]
        template.insert(0, bos)
        used.append((bos, vocabulary.bos_id))
    if vocabulary.add_eos and vocabulary.eos_id is not None:
        eos = vocabulary.tokens[vocabulary.eos_id]
        template.append(eos)
        used.append((eos, vocabulary.eos_id))
    if used:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=used)


def _strings(path: Path, items: list[int] | list[float] | list[bool] | list[str] | None) -> list[str]:
    texts = [item for item in items or [] if isinstance(item, str)]
    if len(texts) != len(items or []):
        raise ModelTextError(path, "its vocabulary or merges are not strings")
    return texts
