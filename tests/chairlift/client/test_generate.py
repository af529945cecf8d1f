"""AsyncClient against a scripted server: what is sent, what comes back, what is noticed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from chairlift.client import (
    AsyncClient,
    ChairliftError,
    ChatMessage,
    Completion,
    FinishReason,
    InvalidArgumentError,
    Job,
    StreamCorruptError,
    Usage,
)
from chairlift.v1 import inference_pb2 as pb


async def test_stream_gives_deltas_and_then_the_whole(server: Any) -> None:
    server.on_generate = server.words
    async with AsyncClient(server.target) as client, client.stream("one two") as generation:
        deltas = [delta async for delta in generation]
        assert [(delta.offset, delta.text) for delta in deltas] == [(0, "one "), (1, "two ")]
        completion = generation.completion
        assert completion == await generation.wait()
    assert completion.text == "one two "
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage == Usage(prompt_tokens=3, cached_tokens=1, output_tokens=2)
    assert (completion.model, completion.choices[0].seed) == ("tiny", 7)
    assert completion.request_id == generation.request_id == server.requests[0].request_id


async def test_several_choices_are_kept_apart(server: Any) -> None:
    async def interleaved(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "a", index=1)
        yield server.delta(0, "A", index=0)
        yield server.delta(1, "b", index=1, num_tokens=2)
        yield server.finished(1, index=0, reason=pb.FINISH_REASON_EOS)
        yield server.finished(
            3, index=1, reason=pb.FINISH_REASON_STOP_STRING, stop=pb.StopMatch(text="."), preemptions=2
        )

    server.on_generate = interleaved
    async with AsyncClient(server.target) as client:
        completion = await client.generate("x", n=2)
    first, second = completion.choices
    assert (first.text, first.finish_reason, first.stop) == ("A", FinishReason.EOS, None)
    assert (second.text, second.num_tokens, second.stop, second.preemptions) == ("ab", 3, ".", 2)
    assert completion.usage == Usage(prompt_tokens=3, cached_tokens=1, output_tokens=4)


async def test_ids_logprobs_and_times_come_through(server: Any) -> None:
    entry = pb.TokenLogprob(
        token_id=5, logprob=-0.5, piece=b"\xf0", top=[pb.Alternative(token_id=6, logprob=-1.0, piece=b"x")]
    )

    async def detailed(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, queue_position=4, predicted_ttft_ms=12.5)
        yield pb.GenerationEvent(prompt_logprobs=pb.PromptLogprobs(logprobs=[pb.TokenLogprob(token_id=1), entry]))
        yield pb.GenerationEvent(prompt_logprobs=pb.PromptLogprobs(offset=2, logprobs=[entry]))
        yield server.delta(0, "hi", num_tokens=2, token_ids=[5, 9], logprobs=[entry, entry])
        yield server.finished(2, timing=pb.Timing(queue_ms=1.5, ttft_ms=3, total_ms=9))

    server.on_generate = detailed
    async with AsyncClient(server.target) as client, client.stream("x", token_ids=True, logprobs=1) as generation:
        completion = await generation.wait()
    assert generation.accepted is not None
    assert (generation.accepted.queue_position, generation.accepted.predicted_ttft_ms) == (4, 12.5)
    choice = completion.choices[0]
    assert choice.token_ids == (5, 9)
    assert choice.logprobs[0].piece == b"\xf0"
    assert choice.logprobs[0].top[0].token_id == 6
    assert [item.logprob for item in completion.prompt_logprobs] == [None, -0.5, -0.5]
    assert choice.timing is not None
    assert (choice.timing.ttft_ms, choice.timing.itl_p50_ms) == (3.0, None)


async def test_what_is_not_given_is_absent_from_the_request(server: Any) -> None:
    """The server's defaults for a model hold only while the client sends none of its own."""
    server.on_generate = server.words
    async with AsyncClient(server.target) as client:
        await client.generate("x")
    request = server.requests[0]
    assert {field.name for field, _ in request.ListFields()} == {"request_id", "text", "delivery"}
    assert request.delivery.detach_grace.seconds == 30


async def test_every_option_reaches_its_field(server: Any) -> None:
    server.on_generate = server.words
    async with AsyncClient(server.target) as client:
        await client.generate(
            "x",
            request_id="mine",
            model="tiny",
            temperature=0.0,
            top_p=0.5,
            top_k=3,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=-1.0,
            frequency_penalty=0.5,
            logit_bias={7: -100.0},
            seed=2**60,
            n=1,
            max_tokens=9,
            min_tokens=2,
            stop="end",
            stop_token_ids=[1, 2],
            include_stop=True,
            ignore_eos=True,
            priority=-3,
            queue_timeout=1.5,
            ttft_slo=0.25,
            itl_slo=0.001,
            prompt_logprobs=0,
            detach_grace=60,
            cache_salt="salt",
        )
    request = server.requests[0]
    assert request.sampling == pb.Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=0.5,
        logit_bias={7: -100.0},
        seed=2**60,
        n=1,
    )
    assert request.sampling.HasField("temperature")
    assert request.stopping == pb.Stopping(
        max_tokens=9, min_tokens=2, stop=["end"], stop_token_ids=[1, 2], include_stop=True, ignore_eos=True
    )
    assert request.scheduling.priority == -3
    assert request.scheduling.queue_timeout.ToMilliseconds() == 1500
    assert request.scheduling.ttft_slo.ToMilliseconds() == 250
    assert request.scheduling.itl_slo.ToMicroseconds() == 1000
    assert request.output.HasField("prompt_logprobs")
    assert not request.output.HasField("logprobs")
    assert request.delivery.detach_grace.seconds == 60
    assert (request.request_id, request.model, request.cache_salt) == ("mine", "tiny", "salt")


async def test_prompts_of_each_kind(server: Any) -> None:
    async def empty(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.finished(0)

    server.on_generate = empty
    parts = [{"type": "text", "text": "a"}, "b"]
    messages: list[Any] = [{"role": "user", "content": parts, "name": "Ann"}, ChatMessage("assistant", "c")]
    async with AsyncClient(server.target) as client:
        await client.generate([1, 2, 3])
        await client.generate([])
        await client.generate(messages, continue_final_message=True)
    ids, none, chat = server.requests
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert none.WhichOneof("input") == "token_ids"
    assert [[part.text for part in message.content] for message in chat.messages.messages] == [["a", "b"], ["c"]]
    assert chat.messages.messages[0].name == "Ann"
    assert not chat.messages.messages[1].HasField("name")
    assert chat.messages.continue_final_message
    assert not chat.messages.HasField("add_generation_prompt")


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("x", {"temprature": 1.0}, TypeError),
        ("x", {"max_tokens": "many"}, TypeError),
        ("x", {"max_tokens": -1}, InvalidArgumentError),
        ("x", {"queue_timeout": float("inf")}, InvalidArgumentError),
        ("\ud800", {}, InvalidArgumentError),
        ([2**32], {}, InvalidArgumentError),
        ("x", {"add_generation_prompt": True}, TypeError),
        (b"x", {}, TypeError),
        ([{"role": "user", "content": "x", "tool_calls": []}], {}, TypeError),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], {}, TypeError),
    ],
)
async def test_what_no_field_can_hold_is_refused_before_it_is_sent(
    prompt: Any, options: Any, error: type[Exception]
) -> None:
    """A misspelt option or an image must not be dropped on the way."""
    async with AsyncClient() as client:
        with pytest.raises(error):
            client.stream(prompt, **options)


CORRUPTIONS: dict[str, tuple[Callable[[Any], list[Any]], str]] = {
    "gap": (lambda s: [s.delta(0, "a"), s.delta(2, "c")], "output is missing: offset 2 after 1 tokens"),
    "repeat": (lambda s: [s.delta(0, "a"), s.delta(0, "a")], "output came twice: offset 0 after 1 tokens"),
    "overlap": (lambda s: [s.delta(0, "ab", num_tokens=2), s.delta(1, "b")], "output came twice: offset 1 after 2"),
    "lost at the end": (lambda s: [s.delta(0, "a"), s.finished(2)], "2 tokens at its end, 1 received"),
    "after the end": (lambda s: [s.finished(0), s.delta(0, "a")], "output after its end"),
    "ended twice": (lambda s: [s.finished(0), s.finished(0)], "ended twice"),
    "unknown choice": (lambda s: [s.delta(0, "a", index=5)], "choice 5 of 2"),
    "no tokens": (lambda s: [s.delta(0, "a", num_tokens=0)], "text without tokens"),
    "accepted twice": (lambda s: [s.accepted(s.requests[0])], "accepted came twice"),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
async def test_a_stream_that_contradicts_itself_raises(server: Any, kind: str) -> None:
    make_events, message = CORRUPTIONS[kind]

    async def corrupt(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        for event in make_events(server):
            yield event
        yield server.finished(9, index=1)

    server.on_generate = corrupt
    async with AsyncClient(server.target) as client:
        with pytest.raises(StreamCorruptError, match=message) as caught:
            await client.generate("x", n=2)
    assert caught.value.partial is not None
    # Never repeated: the server is at fault, not the connection. The request itself is cancelled.
    assert [type(request) for request in server.requests] == [pb.GenerateRequest, pb.CancelRequest]


async def test_ids_that_were_asked_for_and_did_not_come_are_noticed(server: Any) -> None:
    server.on_generate = server.words
    async with AsyncClient(server.target) as client:
        with pytest.raises(StreamCorruptError, match="0 ids, 1 tokens"):
            await client.generate("one", token_ids=True)


async def test_output_before_accepted_is_noticed(server: Any) -> None:
    async def rash(_request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.delta(0, "a")

    server.on_generate = rash
    async with AsyncClient(server.target) as client:
        with pytest.raises(StreamCorruptError, match="delta came before accepted"):
            await client.generate("x")


async def test_events_of_a_later_version_are_passed_over(server: Any) -> None:
    async def newer(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield pb.GenerationEvent.FromString(b"\xfa\x01\x00")  # field 31, which this version does not know
        yield server.finished(0, reason=99)

    server.on_generate = newer
    async with AsyncClient(server.target) as client, client.stream("x") as generation:
        with pytest.raises(ChairliftError):
            await generation.wait()
        assert generation.completion.finish_reason is FinishReason.OTHER


async def test_generate_many_keeps_order_and_gives_errors_in_place(server: Any) -> None:
    running: set[str] = set()
    most = 0

    async def slow_first(request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal most
        running.add(request.text)
        most = max(most, len(running))
        if request.text == "a":
            await asyncio.wait_for(seen_last.wait(), 30)
        if request.text == "d":
            seen_last.set()
        async for event in server.words(request, context):
            yield event
        running.discard(request.text)

    seen_last = asyncio.Event()
    server.on_generate = slow_first
    told: list[int] = []
    prompts: list[Any] = ["a", "b", Job([-1]), Job("c", {"seed": 5}), "d"]
    async with AsyncClient(server.target) as client:
        results = await client.generate_many(
            prompts, concurrency=2, on_result=lambda position, _: told.append(position), seed=4
        )
    texts = [result.text if isinstance(result, Completion) else type(result) for result in results]
    assert texts == ["a ", "b ", InvalidArgumentError, "c ", "d "]
    assert sorted(told) == [0, 1, 2, 3, 4]
    assert told[-1] == 0
    assert most == 2
    assert {request.text: request.sampling.seed for request in server.requests} == {"a": 4, "b": 4, "c": 5, "d": 4}


async def test_generate_many_of_nothing_is_nothing() -> None:
    async with AsyncClient() as client:
        assert await client.generate_many([]) == []
        with pytest.raises(ValueError, match="at least 1"):
            await client.generate_many(["x"], concurrency=0)
