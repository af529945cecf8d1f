"""The bytes and the text of every token id, for streaming output without the tokenizer.

`decoders.DecodeStream` of the `tokenizers` library can raise in the middle of a stream and depends on the prompt; a
table of bytes cannot, and costs a list index a token.
"""

import msgspec
from tokenizers import AddedToken

SPACE_MARK = "\u2581"
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""How a SentencePiece vocabulary spells single bytes, by their value."""


class Spelling(msgspec.Struct, frozen=True):
    """How a vocabulary spells bytes."""

    byte_level: bool
    """GPT-2's byte alphabet; otherwise SentencePiece: a mark for the space, ``<0xAB>`` for a byte."""
    strips_leading_space: bool = False
    """Decoding a text from its beginning drops one space that encoding had put there."""


class TokenTable(msgspec.Struct, frozen=True):
    """What each id below `len(pieces)` is. An id beyond, or one that no token has, is empty."""

    pieces: tuple[bytes, ...]
    """Bytes of each token, special ones spelled out."""
    texts: tuple[str | None, ...]
    """What a token adds to output that stands at a whole code point; special ones add nothing. None: not whole text."""
    special_ids: frozenset[int]
    strips_leading_space: bool
    max_piece_bytes: int
    """Length of the longest piece that is not special."""


def build_token_table(vocab: dict[str, int], added: dict[int, AddedToken], spelling: Spelling) -> TokenTable:
    """The table of a vocabulary (token to id) with its added tokens (id to token), which are spelled as they are."""
    size = 1 + max(max(vocab.values(), default=-1), max(added, default=-1))
    pieces = [b""] * size
    to_bytes = _byte_level_piece if spelling.byte_level else _sentencepiece_piece
    for token, token_id in vocab.items():
        pieces[token_id] = to_bytes(token)
    special_ids = set()
    for token_id, known in added.items():
        # SentencePiece writes the mark in added tokens too; a byte-level vocabulary writes them plainly.
        content = known.content if spelling.byte_level else known.content.replace(SPACE_MARK, " ")
        pieces[token_id] = content.encode()
        if known.special:
            special_ids.add(token_id)
            pieces[token_id] = known.content.encode()
    return TokenTable(
        pieces=tuple(pieces),
        texts=tuple("" if i in special_ids else _whole_text(piece) for i, piece in enumerate(pieces)),
        special_ids=frozenset(special_ids),
        strips_leading_space=spelling.strips_leading_space,
        max_piece_bytes=max((len(p) for i, p in enumerate(pieces) if i not in special_ids), default=1) or 1,
    )


def _whole_text(piece: bytes) -> str | None:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, after GPT-2: printable Latin-1 stands for itself, the rest is moved up from U+0100."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _byte_alphabet()


def _byte_level_piece(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


_BYTE_TOKENS = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}


def _sentencepiece_piece(token: str) -> bytes:
    return _BYTE_TOKENS.get(token) or token.replace(SPACE_MARK, " ").encode()
