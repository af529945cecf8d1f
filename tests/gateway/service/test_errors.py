"""Refusals over a real server, before anything reaches the scheduler."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from chairlift.ipc import front
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc

_IDENTITY = None


async def test_an_invalid_request_names_its_fields_and_goes_no_further(rig: Any) -> None:
    request = pb.GenerateRequest(
        text="hi", request_id="r", sampling=pb.Sampling(top_p=7), stopping=pb.Stopping(stop=[""])
    )
    error = await rig.caller.error(rig.stub.Generate(request))
    assert (error.code, error.info.reason, error.info.domain) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        "chairlift",
    )
    assert error.fields == ["sampling.top_p", "stopping.stop[0]"]
    assert "grpc-retry-pushback-ms" not in error.trailing
    assert rig.scheduler.received == []


async def test_a_prompt_longer_than_the_context_is_refused_here(rig: Any) -> None:
    """vllm#39734: at the door, with the limit."""
    for request in (
        pb.GenerateRequest(text="x" * 128),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 128)),
    ):
        error = await rig.caller.error(rig.stub.Generate(request))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.info.metadata["max_prompt_tokens"] == "127"
    request = pb.GenerateRequest(text="x" * 100, stopping=pb.Stopping(max_tokens=29))
    error = await rig.caller.error(rig.stub.Generate(request))
    assert error.fields == ["stopping.max_tokens"]


async def test_an_unknown_model_is_not_found(rig: Any) -> None:
    for call in (
        rig.stub.Generate(pb.GenerateRequest(text="x", model="other")),
        rig.stub.GetModel(pb.GetModelRequest(model="other")),
        rig.stub.Tokenize(pb.TokenizeRequest(text="x", model="other")),
        rig.stub.Detokenize(pb.DetokenizeRequest(model="other")),
    ):
        error = await rig.caller.error(call)
        assert (error.code, error.info.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")


async def test_the_template_refuses_with_its_own_words(chat_rig: Any) -> None:
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="nobody", content=[pb.ContentPart(text="SECRET")])])
    error = await chat_rig.caller.error(chat_rig.stub.Generate(pb.GenerateRequest(messages=messages)))
    assert (error.code, error.info.reason, error.fields) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "CHAT_TEMPLATE",
        ["messages"],
    )
    assert "nobody may not speak" in error.message
    assert "SECRET" not in str(error.trailing)


async def test_a_model_without_a_template_takes_no_chat(rig: Any) -> None:
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=[pb.ContentPart(text="x")])])
    for call in (
        rig.stub.Generate(pb.GenerateRequest(messages=messages)),
        rig.stub.Tokenize(pb.TokenizeRequest(messages=messages)),
    ):
        error = await rig.caller.error(call)
        assert (error.code, error.info.reason, error.fields) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "CHAT_TEMPLATE",
            ["messages"],
        )


def _raw(rig: Any, method: str, *, is_stream: bool = False) -> Callable[[bytes], Any]:
    path = f"/chairlift.v1.InferenceService/{method}"
    make = rig.caller.channel.unary_stream if is_stream else rig.caller.channel.unary_unary
    call: Callable[[bytes], Any] = make(path, request_serializer=_IDENTITY, response_deserializer=_IDENTITY)
    return call


@pytest.mark.parametrize("packed", [b"\xff\xff\xff", b"\x1a\x02\xff\xfe", b"\x2a\xff\x01", b"\x2a" * 3000])
async def test_bytes_that_are_no_message_are_refused_with_details(rig: Any, packed: bytes) -> None:
    for method, is_stream in (("Generate", True), ("Tokenize", False)):
        error = await rig.caller.error(_raw(rig, method, is_stream=is_stream)(packed))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.info.reason in ("MALFORMED_REQUEST", "INVALID_REQUEST")
    assert (await rig.stub.Tokenize(pb.TokenizeRequest(text="a"))).token_ids


async def test_mutated_requests_leave_neighbours_alone(rig: Any, spell: Callable[[str], list[int]]) -> None:
    neighbour = rig.stub.Generate(pb.GenerateRequest(text="hi"))
    submit = await rig.scheduler.accept()
    valid = pb.GenerateRequest(
        text="hi", sampling=pb.Sampling(temperature=0.5, n=2, logit_bias={1: 2.0}), stopping=pb.Stopping(stop=["a"])
    ).SerializeToString()
    generate = _raw(rig, "Generate", is_stream=True)
    for place in range(len(valid)):
        mutant = bytearray(valid)
        mutant[place] ^= 0x55
        call = generate(bytes(mutant))
        read = asyncio.create_task(call.read())
        submitted = asyncio.create_task(rig.scheduler.next(front.Submit))
        done, pending = await asyncio.wait({read, submitted}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if read in done:
            assert isinstance(read.exception(), grpc.aio.AioRpcError)
            assert await call.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
        call.cancel()
    for offset, token in enumerate(spell("still here")):
        rig.scheduler.tokens(submit.handle, offset, token)
    rig.scheduler.finish(submit.handle, 10)
    events = await rig.caller.events(neighbour)
    assert "".join(event.delta.text for event in events if event.HasField("delta")) == "still here"


async def test_an_oversize_request_is_refused_with_the_limit(start_rig: Any) -> None:
    async with start_rig(max_request_bytes=1000) as rig:
        error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(text="x" * 1500)))
        assert (error.code, error.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_TOO_LARGE")
        assert error.info.metadata["max_request_bytes"] == "1000"
        error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(text="x" * 5000)))
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_too_many_is_refused_and_told_when_to_come_back(start_rig: Any) -> None:
    async with start_rig(max_concurrent_streams=2) as rig:
        calls = [rig.stub.Generate(pb.GenerateRequest(text="hi")) for _ in range(2)]
        for _ in calls:
            await rig.scheduler.accept()
        # The bound of the connection makes a third call on it wait; another connection gets the answer.
        other = grpc.aio.insecure_channel(f"127.0.0.1:{rig.service.port}", options=(("grpc.enable_http_proxy", 0),))
        stub: Any = pb_grpc.InferenceServiceStub(other)
        error = await rig.caller.error(stub.Generate(pb.GenerateRequest(text="hi")))
        assert (error.code, error.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")
        assert error.quota.violations[0].subject == "max_concurrent_streams"
        assert int(error.trailing["grpc-retry-pushback-ms"]) > 0
        for call in calls:
            call.cancel()
        await other.close()


async def test_a_refusal_at_the_door_is_trailers_only(rig: Any) -> None:
    """Only a response without headers of its own may be retried by a client's service config."""
    call = rig.stub.Generate(pb.GenerateRequest())
    error = await rig.caller.error(call)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert tuple(await call.initial_metadata()) == ()


async def test_a_fault_of_ours_ends_one_call_with_a_trace_and_without_text(
    rig: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(*_: object) -> None:
        raise KeyError("SECRET prompt")

    monkeypatch.setattr(rig.service._table, "submit", break_down)
    trace = "ab" * 16
    call = rig.stub.Generate(
        pb.GenerateRequest(text="SECRET"), metadata=(("traceparent", f"00-{trace}-{'12' * 8}-01"),)
    )
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason, error.info.metadata["trace_id"]) == (
        grpc.StatusCode.INTERNAL,
        "INTERNAL",
        trace,
    )
    logged = capsys.readouterr()
    assert trace in logged.out + logged.err
    assert "SECRET" not in logged.out + logged.err + str(error.trailing) + error.message
    assert (await rig.stub.Tokenize(pb.TokenizeRequest(text="a"))).token_ids


async def test_min_tokens_that_the_prompt_leaves_no_room_for(rig: Any) -> None:
    ids = pb.TokenIds(ids=[1] * 100)
    stopping = pb.Stopping(min_tokens=29)
    error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(token_ids=ids, stopping=stopping)))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["stopping.min_tokens"])
    assert error.info.metadata["max_model_len"] == "128"
    call = rig.stub.Generate(pb.GenerateRequest(token_ids=ids, stopping=pb.Stopping(min_tokens=28)))
    submit = await rig.scheduler.accept()
    assert submit.sampling.min_tokens == 28
    call.cancel()
