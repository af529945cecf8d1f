"""Every field of a GenerateRequest, valid and not."""

import math
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.v1 import inference_pb2 as pb
from gateway.errors.api_error import ApiError
from gateway.validation.generate import check_generate
from gateway.validation.limits import RequestLimits
from gateway.validation.spec import ChatInput, GenerateSpec, TextInput

LIMITS = RequestLimits(
    vocab_size=1000,
    max_model_len=256,
    kv_capacity_tokens=128,
    max_piece_bytes=10,
    default_max_tokens=None,
    max_choices=4,
    max_stop_strings=3,
    max_stop_string_bytes=8,
    max_logprobs=5,
    max_chat_messages=3,
    max_priority=10,
    max_request_bytes=1 << 20,
    max_request_duration_s=100.0,
    max_detach_grace_s=60.0,
)


def _check(**fields: Any) -> GenerateSpec:
    return check_generate(pb.GenerateRequest(**({"text": "hi"} | fields)), LIMITS)


def _fields(**fields: Any) -> list[str]:
    with pytest.raises(ApiError) as raised:
        _check(**fields)
    error = raised.value
    assert error.reason == "INVALID_REQUEST"
    assert error.message.startswith(f"{error.violations[0].field}: ")
    return [violation.field for violation in error.violations]


def _message(role: str = "user", *texts: str, **fields: Any) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=[pb.ContentPart(text=text) for text in texts], **fields)


def test_defaults_are_those_of_the_contract() -> None:
    spec = _check()
    assert (spec.request_id, spec.seed, spec.n, spec.max_tokens, spec.priority) == (None, None, 1, None, 0)
    assert spec.input == TextInput("hi")
    sampling = spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (sampling.logprobs, sampling.prompt_logprobs) == (None, None)
    assert (spec.queue_timeout_ns, spec.ttft_slo_ns, spec.itl_slo_ns, spec.detach_grace_ns) == (None, None, None, 0)


_NOT_NUMBERS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0.0, 2.0, 0.7], [-0.1, 2.1, 1e30]),
        ("top_p", [1.0, 1e-6], [0.0, -1.0, 1.1]),
        ("min_p", [0.0, 1.0], [-0.1, 1.5]),
        ("repetition_penalty", [0.1, 1.0, 100.0], [0.0, -2.0]),
        ("presence_penalty", [-2.0, 2.0], [-2.5, 3.0]),
        ("frequency_penalty", [-2.0, 0.0], [-9.0, 2.01]),
    ],
)
def test_numbers_have_bounds_and_are_numbers(name: str, good: list[float], bad: list[float]) -> None:
    for value in good:
        sampling: dict[str, Any] = {name: value}
        assert getattr(_check(sampling=pb.Sampling(**sampling)).sampling, name) == pytest.approx(value)
    for value in bad + _NOT_NUMBERS:
        sampling = {name: value}
        assert _fields(sampling=pb.Sampling(**sampling)) == [f"sampling.{name}"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": ""}, ["text"]),
        ({"text": "x" * 2000}, ["text"]),
        ({"text": None}, ["input"]),
        ({"text": None, "token_ids": pb.TokenIds()}, ["token_ids.ids"]),
        ({"text": None, "token_ids": pb.TokenIds(ids=[1, 999, 1000, 1001])}, ["token_ids.ids[2]"]),
        ({"text": None, "token_ids": pb.TokenIds(ids=[1] * 129)}, ["token_ids.ids"]),
        ({"request_id": ""}, ["request_id"]),
        ({"request_id": "x" * 65}, ["request_id"]),
        ({"request_id": "é"}, ["request_id"]),
        ({"request_id": "a\0b"}, ["request_id"]),
        ({"cache_salt": "é" * 200}, ["cache_salt"]),
        ({"sampling": pb.Sampling(n=0)}, ["sampling.n"]),
        ({"sampling": pb.Sampling(n=5)}, ["sampling.n"]),
        ({"sampling": pb.Sampling(logit_bias={1000: 1.0})}, ["sampling.logit_bias[1000]"]),
        ({"sampling": pb.Sampling(logit_bias={3: 100.5})}, ["sampling.logit_bias[3]"]),
        ({"sampling": pb.Sampling(logit_bias={3: math.nan})}, ["sampling.logit_bias[3]"]),
        ({"sampling": pb.Sampling(logit_bias=dict.fromkeys(range(301), 0.0))}, ["sampling.logit_bias"]),
        ({"stopping": pb.Stopping(max_tokens=0)}, ["stopping.max_tokens"]),
        ({"stopping": pb.Stopping(max_tokens=256)}, ["stopping.max_tokens"]),
        ({"stopping": pb.Stopping(max_tokens=5, min_tokens=6)}, ["stopping.min_tokens"]),
        ({"stopping": pb.Stopping(min_tokens=300)}, ["stopping.min_tokens"]),
        ({"stopping": pb.Stopping(min_tokens=256)}, ["stopping.min_tokens"]),
        ({"stopping": pb.Stopping(stop=["a", ""])}, ["stopping.stop[1]"]),
        ({"stopping": pb.Stopping(stop=["ééééé"])}, ["stopping.stop[0]"]),
        ({"stopping": pb.Stopping(stop=["a", "b", "c", "d"])}, ["stopping.stop"]),
        ({"stopping": pb.Stopping(stop_token_ids=[1, 2**32 - 1])}, ["stopping.stop_token_ids[1]"]),
        ({"stopping": pb.Stopping(stop_token_ids=[1] * 257)}, ["stopping.stop_token_ids"]),
        ({"output": pb.Output(logprobs=6)}, ["output.logprobs"]),
        ({"output": pb.Output(prompt_logprobs=6)}, ["output.prompt_logprobs"]),
        ({"scheduling": pb.Scheduling(queue_timeout=Duration())}, ["scheduling.queue_timeout"]),
        ({"scheduling": pb.Scheduling(ttft_slo=Duration(seconds=-1))}, ["scheduling.ttft_slo"]),
        ({"scheduling": pb.Scheduling(itl_slo=Duration(seconds=1, nanos=-1))}, ["scheduling.itl_slo"]),
        ({"scheduling": pb.Scheduling(itl_slo=Duration(nanos=2_000_000_000))}, ["scheduling.itl_slo"]),
        ({"scheduling": pb.Scheduling(queue_timeout=Duration(seconds=10**11))}, ["scheduling.queue_timeout"]),
        ({"delivery": pb.Delivery(detach_grace=Duration(nanos=-1))}, ["delivery.detach_grace"]),
    ],
)
def test_what_cannot_be_accepted_is_named_by_its_path(fields: dict[str, Any], expected: list[str]) -> None:
    assert _fields(**fields) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (pb.ChatMessages(), ["messages.messages"]),
        (pb.ChatMessages(messages=[_message()] * 4), ["messages.messages"]),
        (pb.ChatMessages(messages=[_message("")]), ["messages.messages[0].role"]),
        (pb.ChatMessages(messages=[_message(), _message("a\nb")]), ["messages.messages[1].role"]),
        (pb.ChatMessages(messages=[_message("user", "x", name="")]), ["messages.messages[0].name"]),
        (
            pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=[pb.ContentPart()])]),
            ["messages.messages[0].content[0]"],
        ),
        (
            pb.ChatMessages(messages=[_message()], add_generation_prompt=True, continue_final_message=True),
            ["messages.continue_final_message"],
        ),
        (pb.ChatMessages(messages=[_message("user", "y" * 2000)]), ["messages.messages"]),
    ],
)
def test_chats_are_checked_message_by_message(messages: pb.ChatMessages, expected: list[str]) -> None:
    assert _fields(text=None, messages=messages) == expected


def test_a_chat_joins_parts_and_opens_the_next_turn_unless_it_continues_one() -> None:
    messages = pb.ChatMessages(messages=[_message("user", "a", "b"), _message("assistant", "c", name="bot")])
    spec = _check(text=None, messages=messages)
    assert isinstance(spec.input, ChatInput)
    assert [(turn.role, turn.content, turn.name) for turn in spec.input.chat.turns] == [
        ("user", "ab", None),
        ("assistant", "c", "bot"),
    ]
    assert spec.input.chat.add_generation_prompt
    messages.continue_final_message = True
    continued = _check(text=None, messages=messages).input
    assert isinstance(continued, ChatInput)
    assert (continued.chat.add_generation_prompt, continued.chat.continue_final_message) == (False, True)


def test_every_violation_is_told_up_to_eight() -> None:
    sampling = pb.Sampling(temperature=9, top_p=2, min_p=2, n=0)
    stopping = pb.Stopping(max_tokens=0, stop=["", "", ""], stop_token_ids=[5000] * 9)
    fields = _fields(request_id="", sampling=sampling, stopping=stopping)
    assert len(fields) == 8
    assert fields[:2] == ["request_id", "sampling.temperature"]


def test_limits_in_force_are_named() -> None:
    with pytest.raises(ApiError) as raised:
        _check(sampling=pb.Sampling(n=5), stopping=pb.Stopping(stop_token_ids=[1000]))
    assert dict(raised.value.limits) == {"max_choices": "4", "vocab_size": "1000"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "100"),
        ("sampling", "sampling.100"),
        ("stopping", "stopping.100"),
        ("scheduling", "scheduling.100"),
        ("output", "output.100"),
        ("delivery", "delivery.100"),
        ("messages", "messages.100"),
        ("messages.messages", "messages.messages[0].100"),
    ],
)
def test_fields_of_a_newer_contract_are_refused_and_not_ignored(path: str, expected: str) -> None:
    unknown = b"\xa2\x06\x01x"  # field 100
    request = pb.GenerateRequest(text="hi")
    if path.startswith("messages"):
        request.messages.messages.append(_message("user", "x"))
    target: Any = request
    for name in path.split(".") if path else []:
        target = getattr(target, name)
    if path == "messages.messages":
        target = target[0]
    elif path:
        target.SetInParent()
    target.MergeFromString(unknown)
    with pytest.raises(ApiError) as raised:
        check_generate(pb.GenerateRequest.FromString(request.SerializeToString()), LIMITS)
    assert [violation.field for violation in raised.value.violations] == [expected]


def test_bounds_that_cap_do_not_refuse() -> None:
    spec = _check(scheduling=pb.Scheduling(priority=10**6), delivery=pb.Delivery(detach_grace=Duration(seconds=10**6)))
    assert (spec.priority, spec.detach_grace_ns) == (10, 60 * 10**9)
    assert _check(scheduling=pb.Scheduling(priority=-5)).priority == -5
    assert _check(sampling=pb.Sampling(top_k=2**32 - 1)).sampling.top_k == 1000


def test_the_digest_tells_what_is_asked_for_but_the_id() -> None:
    base = pb.GenerateRequest(text="hi", sampling=pb.Sampling(logit_bias={1: 1.0, 2: 2.0, 3: 3.0}))
    digest = check_generate(base, LIMITS).digest
    for same in (
        pb.GenerateRequest(text="hi", sampling=pb.Sampling(logit_bias={3: 3.0, 1: 1.0, 2: 2.0}), request_id="x"),
        # Defaults written out, and parts that are there and empty.
        pb.GenerateRequest(
            text="hi",
            sampling=pb.Sampling(logit_bias={1: 1.0, 2: 2.0, 3: 3.0}, temperature=1, top_p=1, n=1),
            stopping=pb.Stopping(min_tokens=0, include_stop=False),
            delivery=pb.Delivery(detach_grace=Duration()),
            output=pb.Output(),
        ),
    ):
        assert check_generate(same, LIMITS).digest == digest
    bias = base.sampling
    for other in (
        pb.GenerateRequest(text="hi"),
        pb.GenerateRequest(text="ho", sampling=bias),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), sampling=bias),
        pb.GenerateRequest(text="hi", sampling=bias, stopping=pb.Stopping(max_tokens=1)),
        pb.GenerateRequest(text="hi", sampling=bias, output=pb.Output(token_ids=True)),
        pb.GenerateRequest(text="hi", sampling=bias, output=pb.Output(logprobs=0)),
        pb.GenerateRequest(text="hi", sampling=bias, delivery=pb.Delivery(detach_grace=Duration(seconds=1))),
        pb.GenerateRequest(text="hi", sampling=bias, cache_salt="s"),
    ):
        assert check_generate(other, LIMITS).digest != digest


_FLOATS = st.none() | st.floats(width=32)
_IDS = st.integers(0, 1100) | st.integers(0, 2**32 - 1)
_REQUESTS = st.builds(
    pb.GenerateRequest,
    request_id=st.none() | st.text(max_size=70),
    text=st.text(max_size=5),
    cache_salt=st.text(max_size=10),
    sampling=st.builds(
        pb.Sampling,
        temperature=_FLOATS,
        top_p=_FLOATS,
        min_p=_FLOATS,
        repetition_penalty=_FLOATS,
        presence_penalty=_FLOATS,
        frequency_penalty=_FLOATS,
        top_k=st.none() | st.integers(0, 2**32 - 1),
        seed=st.none() | st.integers(0, 2**64 - 1),
        n=st.none() | st.integers(0, 6),
        logit_bias=st.dictionaries(_IDS, st.floats(width=32), max_size=3),
    ),
    stopping=st.builds(
        pb.Stopping,
        max_tokens=st.none() | st.integers(0, 300),
        min_tokens=st.integers(0, 300),
        stop=st.lists(st.text(max_size=5), max_size=4),
        stop_token_ids=st.lists(_IDS, max_size=3),
    ),
    scheduling=st.builds(
        pb.Scheduling,
        priority=st.integers(-(2**31), 2**31 - 1),
        queue_timeout=st.none()
        | st.builds(Duration, seconds=st.integers(-5, 10**12), nanos=st.integers(-(2**31), 2**31 - 1)),
    ),
)


@given(request=_REQUESTS)
@settings(max_examples=400)
def test_whatever_is_accepted_is_within_bounds(request: pb.GenerateRequest) -> None:
    try:
        spec = check_generate(request, LIMITS)
    except ApiError as refused:
        error: ApiError | None = refused
    else:
        error = None
    if error is not None:
        assert 1 <= len(error.violations) <= 8
        return
    sampling = spec.sampling
    assert 0 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1
    assert 0 <= sampling.min_p <= 1
    assert 0 < sampling.repetition_penalty < math.inf
    assert abs(sampling.presence_penalty) <= 2
    assert abs(sampling.frequency_penalty) <= 2
    assert all(token < 1000 and abs(bias) <= 100 for token, bias in sampling.logit_bias)
    assert all(token < 1000 for token in sampling.stop_token_ids)
    assert 1 <= spec.n <= 4
    assert spec.max_tokens is None or sampling.min_tokens <= spec.max_tokens < 256
    assert spec.stop.strings == tuple(dict.fromkeys(request.stopping.stop))
    assert spec.queue_timeout_ns is None or spec.queue_timeout_ns > 0
