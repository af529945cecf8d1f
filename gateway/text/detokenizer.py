"""Turns one choice's token ids into text that may leave, token by token.

Text leaves in *pieces*: the shortest runs of tokens that end at a whole code point. A piece is held back while its text
may still be the beginning of a stop string. Pieces are a function of the ids alone, however these are grouped in time,
so a stream can be taken up again at any border between pieces.

Bytes that are no UTF-8 become U+FFFD, one for each maximal piece of an ill-formed sequence (the Unicode standard's
practice); bytes that are still open at the end become one when the choice ends. Special tokens add no text. Prompt and
network are unknown here.
"""

import codecs
from collections.abc import Sequence

import msgspec

from gateway.text.stop_strings import StopAutomaton
from gateway.text.token_table import TokenTable

_NO_IDS: frozenset[int] = frozenset()


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A run of tokens whose text is decided."""

    num_tokens: int
    text: str


class StopFound(msgspec.Struct, frozen=True, gc=False):
    """A stop string ended the choice."""

    num_tokens: int
    """Output tokens up to and with the one that completes the match."""
    text: str
    """The stop string."""


class Detokenizer:
    """The text side of one choice.

    `stops` is shared by the request's choices. A stop string that a token before the `min_tokens`-th completes is
    ordinary text. `silent_ids` are stop token ids whose text must not be seen. `strip_leading_space` is for output that
    begins a text of its own, such as an assistant's turn, in vocabularies that put a space before each text.
    """

    __slots__ = (
        "_first",
        "_held",
        "_held_chars",
        "_is_clear",
        "_min_tokens",
        "_num_tokens",
        "_open_bytes",
        "_open_text",
        "_open_tokens",
        "_pieces",
        "_silent_ids",
        "_size",
        "_state",
        "_stops",
        "_strip",
        "_texts",
        "_with_stop",
        "stop",
    )

    def __init__(
        self,
        table: TokenTable,
        *,
        stops: StopAutomaton | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
        silent_ids: frozenset[int] = _NO_IDS,
        strip_leading_space: bool = False,
    ) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._size = len(table.pieces)
        self._silent_ids = silent_ids - table.special_ids if silent_ids else _NO_IDS
        self._stops = stops
        self._first = stops.first_characters if stops is not None else _NO_IDS
        self._with_stop = include_stop
        self._min_tokens = min_tokens
        self._strip = strip_leading_space and table.strips_leading_space
        self._num_tokens = 0
        self._open_tokens = 0
        self._open_text = ""
        self._open_bytes = b""
        self._held: list[Piece] = []
        self._held_chars = 0
        self._state = 0
        self._is_clear = not self._strip and not self._silent_ids
        """Nothing is open or held, so that a token with whole text and no beginning of a stop string may pass."""
        self.stop: StopFound | None = None
        """Set once, when a stop string has ended the choice; later tokens are ignored."""

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far; those after a stop string do not count."""
        return self._num_tokens

    def feed(self, ids: Sequence[int]) -> list[Piece]:
        """Takes the next tokens; returns the pieces that may leave now, in order."""
        out: list[Piece] = []
        texts, size, first = self._texts, self._size, self._first
        for token_id in ids:
            if self._is_clear:
                text = texts[token_id] if token_id < size else ""
                if text is not None and (not first or first.isdisjoint(text)):
                    self._num_tokens += 1
                    out.append(Piece(1, text))
                    continue
            elif self.stop is not None:
                break
            self._take(token_id, out)
        return out

    def finish(self) -> list[Piece]:
        """The choice has ended by other means: everything that was held, undecided bytes as one U+FFFD."""
        if self.stop is not None:
            return []
        if self._open_tokens:
            self._close(self._open_bytes.decode("utf-8", "replace"))
        out, self._held, self._held_chars = self._held, [], 0
        return out

    def _take(self, token_id: int, out: list[Piece]) -> None:
        """One token the careful way."""
        self._num_tokens += 1
        self._open_tokens += 1
        text = self._decode(token_id)
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        if self._stops is not None and text and self._ends_in_stop(text):
            self._cut(out)
            return
        if self._open_bytes:
            self._open_text += text
        else:
            self._close(text)
        self._release(out)
        self._is_clear = not (self._open_tokens or self._held or self._strip or self._silent_ids)

    def _decode(self, token_id: int) -> str:
        """Whole characters that the token completes; bytes of an open one are kept."""
        if token_id >= self._size or token_id in self._silent_ids:
            return ""
        text = self._texts[token_id]
        if text is not None and (not text or not self._open_bytes):
            return text
        data = self._open_bytes + self._pieces[token_id]
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._open_bytes = data[consumed:]
        return text

    def _ends_in_stop(self, text: str) -> bool:
        """Moves the automaton over `text`; at a match that counts, sets `stop` and cuts the open text there."""
        assert self._stops is not None
        step, match, state = self._stops.step, self._stops.match, self._state
        counts = self._num_tokens >= self._min_tokens
        for position, character in enumerate(text, 1):
            state = step(state, character)
            if counts and match[state]:
                self.stop = StopFound(self._num_tokens, match[state])
                self._open_text += text[:position]
                return True
        self._state = state
        return False

    def _close(self, text: str) -> None:
        """The open tokens end at a whole code point: they are a piece."""
        piece = Piece(self._open_tokens, self._open_text + text)
        self._held.append(piece)
        self._held_chars += len(piece.text)
        self._open_tokens, self._open_text, self._open_bytes = 0, "", b""

    def _release(self, out: list[Piece]) -> None:
        """Lets go of pieces that no stop string can reach any more."""
        hold = self._stops.hold[self._state] if self._stops is not None else 0
        if not hold:
            out += self._held
            self._held.clear()
            self._held_chars = 0
            return
        count, safe = 0, self._held_chars + len(self._open_text) - hold
        for piece in self._held:
            if len(piece.text) > safe:
                break
            safe -= len(piece.text)
            self._held_chars -= len(piece.text)
            count += 1
        out += self._held[:count]
        del self._held[:count]

    def _cut(self, out: list[Piece]) -> None:
        """The stop string stands at the end of what is held: everything leaves, the text up to it or through it."""
        assert self.stop is not None
        self._is_clear = False
        self._close("")
        keep = self._held_chars - (0 if self._with_stop else len(self.stop.text))
        for piece in self._held:
            out.append(Piece(piece.num_tokens, piece.text[:keep]) if len(piece.text) > keep else piece)
            keep = max(0, keep - len(piece.text))
        self._held.clear()
        self._held_chars = 0
