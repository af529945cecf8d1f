"""Deltas that are written by hand are those that protobuf would write."""

from hypothesis import given
from hypothesis import strategies as st

from chairlift.v1 import inference_pb2 as pb
from gateway.streams.wire import encode_delta

NUMBERS = st.one_of(st.sampled_from([0, 1, 127, 128, 16_383, 16_384, (1 << 32) - 1]), st.integers(0, (1 << 32) - 1))


@given(NUMBERS, NUMBERS, NUMBERS.filter(bool), st.one_of(st.text(), st.just("é" * 9000)))
def test_bytes_are_protobufs(index: int, offset: int, num_tokens: int, text: str) -> None:
    delta = pb.Delta(index=index, offset=offset, num_tokens=num_tokens, text=text)
    response = pb.GenerateResponse(event=pb.GenerationEvent(delta=delta))
    packed = encode_delta(index, offset, num_tokens, text)
    assert packed == response.SerializeToString(deterministic=True)
    assert pb.GenerateResponse.FromString(packed) == response
