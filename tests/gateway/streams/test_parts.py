"""Small parts of a stream: gaps, stream tokens, request state, choices."""

import base64
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason
from chairlift.v1 import inference_pb2 as pb
from gateway.errors.api_error import ApiError
from gateway.streams.choice import Choice, OutputGapError
from gateway.streams.gaps import TokenGaps
from gateway.streams.request_state import MAX_BYTES, RequestState, TextRules, decode_state, encode_state
from gateway.streams.stream_token import StreamToken, decode_token, encode_token
from gateway.text.model_text import ModelText


def taken(choice: Choice) -> pb.GenerateResponse | None:
    packed = choice.take_delta()
    return None if packed is None else pb.GenerateResponse.FromString(packed)


@given(times=st.lists(st.floats(0, 1e4), min_size=2, max_size=300).map(sorted))
def test_gaps_have_the_median_and_the_longest(times: list[float]) -> None:
    gaps = TokenGaps()
    assert gaps.median_ms is None
    for time in times:
        gaps.note(time)
    differences = [1e3 * (b - a) for a, b in pairwise(times)]
    assert gaps.median_ms == pytest.approx(statistics.median(differences))
    assert gaps.longest_ms == pytest.approx(max(differences))


def test_many_gaps_are_kept_in_bounded_memory() -> None:
    gaps = TokenGaps()
    for step in range(100_000):
        gaps.note(step * 0.01 + (0.5 if step >= 99_999 else 0.0))
    assert len(gaps._kept) < 2048
    assert gaps.median_ms == pytest.approx(10.0)
    assert gaps.longest_ms == pytest.approx(510.0)


@given(replica=st.text(max_size=30), epoch=st.integers(0, 2**53), number=st.integers(0, 2**53))
def test_stream_tokens_come_back(replica: str, epoch: int, number: int) -> None:
    token = StreamToken(replica, epoch, number)
    text = encode_token(token)
    assert text.isascii()
    assert decode_token(text) == token


@given(packed=st.binary(max_size=60))
def test_other_bytes_are_no_tokens(packed: bytes) -> None:
    text = base64.urlsafe_b64encode(b"\xc1" + packed).decode()
    with pytest.raises(ApiError, match="stream_token"):
        decode_token(text)


@pytest.mark.parametrize("text", ["a" * 1000, "!!!", encode_token(StreamToken("r", -1, 2)), ""])
def test_bad_tokens_are_refused(text: str) -> None:
    with pytest.raises(ApiError):
        decode_token(text)


def test_state_comes_back_and_grows_at_its_end_only() -> None:
    state = RequestState("m", 5, ("a", "é"), True, 3, (7, 8), True, True, True, True)
    assert decode_state(encode_state(state)) == state
    # From a gateway that knows nothing of the later fields.
    assert decode_state(b"\x92\xa1m\x05") == RequestState("m", 5)
    with pytest.raises(ApiError):
        decode_state(b"\x01")
    with pytest.raises(ApiError):
        encode_state(RequestState("m", 5, ("x" * MAX_BYTES,)))


def _choice(text: ModelText, state: RequestState) -> Choice:
    table = text.tokenizer.table
    return Choice(0, 256, state, TextRules(state, table), table)


def test_output_that_is_told_again_is_taken_once(byte_text: ModelText) -> None:
    ids = byte_text.tokenizer.encode_prompt("hello")
    choice = _choice(byte_text, RequestState("m", 0, wants_token_ids=True))
    choice.push(0, ids[:3], 1.0)
    choice.push(1, ids[1:4], 2.0)
    choice.push(0, ids[:2], 3.0)
    delta = taken(choice)
    assert delta is not None
    assert delta.event.delta.text == "hell"
    assert list(delta.event.delta.token_ids) == ids[:4]
    assert taken(choice) is None
    with pytest.raises(OutputGapError):
        choice.push(5, ids[:1], 4.0)


@pytest.mark.parametrize(("offset", "rest"), [(0, "aé!"), (1, "é!"), (3, "!"), (4, ""), (2, None), (5, None)])
def test_a_client_goes_on_where_a_delta_can_have_ended(byte_text: ModelText, offset: int, rest: str | None) -> None:
    choice = _choice(byte_text, RequestState("m", 0))
    choice.remember_borders()
    choice.push(0, byte_text.tokenizer.encode_prompt("aé!"), None)
    assert choice.skip_to(offset) == (rest is not None)
    if rest is not None:
        delta = taken(choice)
        assert (delta.event.delta.text if delta is not None else "") == rest
        assert delta is None or delta.event.delta.offset == offset


def test_held_text_leaves_at_the_end(byte_text: ModelText) -> None:
    choice = _choice(byte_text, RequestState("m", 0, ("stop",)))
    choice.push(0, byte_text.tokenizer.encode_prompt("a sto"), 1.0)
    first = taken(choice)
    assert first is not None
    assert first.event.delta.text == "a "
    choice.finish(front.Finished(256, FinishReason.LENGTH, 5))
    last = taken(choice)
    assert last is not None
    assert (last.event.delta.text, last.event.delta.offset, last.event.delta.num_tokens) == ("sto", 2, 3)
    assert not choice.push(5, [1], 2.0)
