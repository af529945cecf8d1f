"""The streaming text of a choice, against a model that decodes everything anew after each token."""

import codecs
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.detokenizer import Detokenizer, Piece, StopFound
from gateway.text.model_text import ModelText
from gateway.text.stop_strings import StopAutomaton
from gateway.text.token_table import TokenTable

_SPECIAL = 0
_EMOJI = "👩‍🚀".encode()
_TOKENS = [
    b"<|special|>",
    b"a",
    b"b",
    b" ab",
    b" ",
    "é".encode(),
    *(bytes([byte]) for byte in "é€😀".encode()),
    b"a\xe2\x82",
    b"\xacb",
    b"\xff",
    b"aab",
    b"",
]


def _table(tokens: list[bytes], *, strips: bool = False) -> TokenTable:
    def text(index: int, piece: bytes) -> str | None:
        if index == _SPECIAL:
            return ""
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return None

    return TokenTable(
        pieces=tuple(tokens),
        texts=tuple(text(index, piece) for index, piece in enumerate(tokens)),
        special_ids=frozenset({_SPECIAL}),
        strips_leading_space=strips,
        max_piece_bytes=max(map(len, tokens)),
    )


_TABLE = _table(_TOKENS, strips=True)


class _Options(NamedTuple):
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    silent: frozenset[int] = frozenset()
    strip: bool = False

    def build(self) -> Detokenizer:
        return Detokenizer(
            _TABLE,
            stops=StopAutomaton(self.stops) if self.stops else None,
            include_stop=self.include_stop,
            min_tokens=self.min_tokens,
            silent_ids=self.silent,
            strip_leading_space=self.strip,
        )


class _Decoded(NamedTuple):
    text: str
    is_whole: bool


def _decode(ids: list[int], options: _Options) -> _Decoded:
    hidden = options.silent | {_SPECIAL}
    data = b"".join(_TOKENS[i] for i in ids if i < len(_TOKENS) and i not in hidden)
    text, consumed = codecs.utf_8_decode(data, "replace", False)
    return _Decoded(text.removeprefix(" ") if options.strip else text, consumed == len(data))


class _Model:
    """What must have left after each number of tokens."""

    def __init__(self, ids: list[int], options: _Options) -> None:
        self.prefixes = [_decode(ids[:k], options) for k in range(len(ids) + 1)]
        self.options = options
        self.stop: StopFound | None = None
        self.cut = 0
        text = self.prefixes[-1].text
        for end in range(1, len(text) + 1):
            num_tokens = next(k for k, prefix in enumerate(self.prefixes) if len(prefix.text) >= end)
            found = max((s for s in options.stops if text[:end].endswith(s)), key=len, default="")
            if found and num_tokens >= options.min_tokens:
                self.stop = StopFound(num_tokens, found)
                self.cut = end if options.include_stop else end - len(found)
                break

    def released(self, num_tokens: int) -> list[Piece]:
        """Pieces that have left after `num_tokens` tokens."""
        if self.stop is not None and num_tokens >= self.stop.num_tokens:
            last = self.stop.num_tokens
            ends = [k for k in range(1, last) if self.prefixes[k].is_whole] + [last]
            return self._pieces(ends, self.cut)
        text = self.prefixes[num_tokens].text
        proper = {stop[:length] for stop in self.options.stops for length in range(1, len(stop))}
        safe = len(text) - max((len(p) for p in proper if text.endswith(p)), default=0)
        ends = [k for k in range(1, num_tokens + 1) if self.prefixes[k].is_whole and len(self.prefixes[k].text) <= safe]
        return self._pieces(ends, safe)

    def _pieces(self, ends: list[int], limit: int) -> list[Piece]:
        starts = [0, *ends][:-1]
        pieces = []
        for start, end in zip(starts, ends, strict=True):
            left, right = len(self.prefixes[start].text), len(self.prefixes[end].text)
            pieces.append(Piece(end - start, self.prefixes[end].text[min(left, limit) : min(right, limit)]))
        return pieces


_OPTIONS = st.builds(
    _Options,
    stops=st.lists(st.text("ab é€😀", min_size=1, max_size=4), max_size=3).map(tuple),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 4),
    silent=st.sampled_from([frozenset[int](), frozenset({1}), frozenset({_SPECIAL, 5})]),
    strip=st.booleans(),
)
_IDS = st.lists(st.integers(0, len(_TOKENS) + 1), max_size=16)


@given(ids=_IDS, options=_OPTIONS)
@settings(max_examples=600, deadline=None)
def test_each_token_releases_exactly_what_is_decided(ids: list[int], options: _Options) -> None:
    model, detokenizer, released = _Model(ids, options), options.build(), list[Piece]()
    for num_tokens, token_id in enumerate(ids, 1):
        released += detokenizer.feed([token_id])
        assert released == model.released(num_tokens)
        assert detokenizer.stop == (
            model.stop if model.stop is not None and num_tokens >= model.stop.num_tokens else None
        )
    released += detokenizer.finish()
    text = "".join(piece.text for piece in released)
    if model.stop is not None:
        assert text == model.prefixes[-1].text[: model.cut]
        assert sum(piece.num_tokens for piece in released) == detokenizer.num_tokens == model.stop.num_tokens
    else:
        whole = model.prefixes[-1]
        assert text == whole.text + ("" if whole.is_whole else "\ufffd")
        assert sum(piece.num_tokens for piece in released) == detokenizer.num_tokens == len(ids)
    assert detokenizer.finish() == []


@given(ids=_IDS, options=_OPTIONS, cuts=st.lists(st.integers(0, 16), max_size=6))
@settings(max_examples=250, deadline=None)
def test_grouping_changes_nothing(ids: list[int], options: _Options, cuts: list[int]) -> None:
    """Taken up again with all tokens at once, a stream has the same borders: a client may resume at each."""
    one_by_one = options.build()
    expected = [piece for token_id in ids for piece in one_by_one.feed([token_id])] + one_by_one.finish()
    grouped = options.build()
    edges = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    released = [piece for start, end in pairwise(edges) for piece in grouped.feed(ids[start:end])] + grouped.finish()
    assert released == expected
    assert grouped.stop == one_by_one.stop


@given(ids=_IDS, options=_OPTIONS)
@settings(max_examples=250, deadline=None)
def test_text_after_an_offset_depends_on_the_tokens_before_it_only(ids: list[int], options: _Options) -> None:
    whole = options.build()
    pieces = whole.feed(ids) + whole.finish()
    offset, text = 0, ""
    for piece in pieces[:-1]:
        offset += piece.num_tokens
        text += piece.text
        if whole.stop is None:
            assert text == _decode(ids[:offset], options).text


def _stream(
    tokens: list[bytes], stops: tuple[str, ...], *, include_stop: bool = False
) -> tuple[list[Piece], Detokenizer]:
    table = _table([b"<|special|>", *tokens])
    detokenizer = Detokenizer(table, stops=StopAutomaton(stops) if stops else None, include_stop=include_stop)
    pieces: list[Piece] = []
    for index in range(len(tokens)):
        pieces += detokenizer.feed([index + 1])
    return pieces + detokenizer.finish(), detokenizer


def test_the_beginning_of_a_stop_string_never_leaks() -> None:
    """vllm#3574."""
    table = _table([b"<|special|>", b"one", b"\n", b"two", b"\nEN", b"D"])
    detokenizer = Detokenizer(table, stops=StopAutomaton(["\nEND"]))
    assert detokenizer.feed([1]) == [Piece(1, "one")]
    assert detokenizer.feed([2]) == []
    assert detokenizer.feed([3]) == [Piece(1, "\n"), Piece(1, "two")]
    assert detokenizer.feed([4]) == []
    assert detokenizer.feed([5]) == [Piece(1, ""), Piece(1, "")]
    assert detokenizer.stop == StopFound(5, "\nEND")


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "say hel"), (True, "say hello")])
def test_a_stop_cuts_at_the_character_and_keeps_the_token_count(include_stop: bool, expected: str) -> None:
    """vllm#42210: the token that completes the match reaches beyond it."""
    pieces, detokenizer = _stream([b"say", b" he", b"ll", b"o wor", b"ld"], ("lo",), include_stop=include_stop)
    assert "".join(piece.text for piece in pieces) == expected
    assert sum(piece.num_tokens for piece in pieces) == 4
    assert detokenizer.stop == StopFound(4, "lo")
    assert detokenizer.feed([1, 2]) == []


def test_only_whole_code_points_leave_and_open_bytes_appear_once_at_the_end() -> None:
    """dynamo#12630."""
    pieces, _ = _stream([bytes([byte]) for byte in _EMOJI], ())
    assert pieces == [Piece(4, "👩"), Piece(3, "\u200d"), Piece(4, "🚀")]
    pieces, _ = _stream([b"x", b"\xf0", b"\x9f", b"\x98"], ())
    assert pieces == [Piece(1, "x"), Piece(3, "\ufffd")]


def test_counts_are_of_ids_and_not_of_text() -> None:
    """vllm#28172, sglang#17240: tokens without text count, and the table knows no prompt."""
    detokenizer = Detokenizer(_TABLE)
    pieces = detokenizer.feed([_SPECIAL, 1, _SPECIAL, 999_999, 2])
    assert [piece.num_tokens for piece in pieces] == [1, 1, 1, 1, 1]
    assert "".join(piece.text for piece in pieces) == "ab"


def test_offsets_give_each_token_once() -> None:
    """tenstorrent/vllm#395: the pieces tile the output."""
    pieces, detokenizer = _stream([b"a", b"\xe2", b"\x82", b"\xac", b"ST", b"x", b"STOP"], ("STOP",))
    assert [piece.num_tokens for piece in pieces] == [1, 3, 1, 1, 1]
    assert sum(piece.num_tokens for piece in pieces) == detokenizer.num_tokens == 7


def test_the_match_that_is_complete_first_wins_and_of_equals_the_longest() -> None:
    pieces, detokenizer = _stream([b"xabcdef"], ("abcdef", "cd"))
    assert detokenizer.stop == StopFound(1, "cd")
    assert pieces == [Piece(1, "xab")]
    pieces, detokenizer = _stream([b"xabcd"], ("d", "bcd", "cd"))
    assert detokenizer.stop == StopFound(1, "bcd")
    assert pieces == [Piece(1, "xa")]


def test_sentencepiece_output_of_a_turn_starts_without_the_space(spm: ModelText) -> None:
    ids = spm.tokenizer.encode_rendered("hello world é日 🎉")
    turn = Detokenizer(spm.tokenizer.table, strip_leading_space=True)
    text = "".join(piece.text for piece in turn.feed(ids) + turn.finish())
    assert text == spm.tokenizer.decode(ids) == "hello world é日 🎉"
    going_on = Detokenizer(spm.tokenizer.table)
    assert "".join(piece.text for piece in going_on.feed(ids)) == " hello world é日 🎉"


def test_streamed_text_equals_the_tokenizers_own(smollm: ModelText) -> None:
    text = "def f(x):\n\treturn {'ключ': x}  # 日本語 👩‍👩‍👧‍👦 é\u0301\r\n\u3000"
    ids = smollm.tokenizer.encode_prompt(text)
    detokenizer = Detokenizer(smollm.tokenizer.table, stops=StopAutomaton(["never here"]))
    pieces = [piece for token_id in ids for piece in detokenizer.feed([token_id])] + detokenizer.finish()
    assert "".join(piece.text for piece in pieces) == text
    assert sum(piece.num_tokens for piece in pieces) == len(ids)
