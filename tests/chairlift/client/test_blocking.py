"""The client without an event loop: the same results and errors, and threads that can stop it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from chairlift.client import (
    AsyncClient,
    AsyncGeneration,
    Client,
    Completion,
    DeadlineExceededError,
    Generation,
    InvalidArgumentError,
    Job,
    NotFoundError,
    RequestCancelledError,
    RetryPolicy,
    StreamCorruptError,
)
from chairlift.v1 import inference_pb2 as pb

FAST = RetryPolicy(initial_backoff_s=0.001)


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_clients_offer_the_same() -> None:
    assert _public(Client) == _public(AsyncClient)
    assert _public(Generation) == {name.replace("aclose", "close") for name in _public(AsyncGeneration)}


def test_stream_and_generate(threaded_server: Any) -> None:
    threaded_server.on_generate = threaded_server.words
    with Client(threaded_server.target) as client:
        with client.stream("one two") as generation:
            assert [delta.text for delta in generation] == ["one ", "two "]
        assert generation.completion.text == "one two "
        assert client.generate("three", n=2).choices[1].text == "three "


def test_unary_calls_and_their_errors(threaded_server: Any) -> None:
    async def answer(request: Any, context: Any) -> Any:
        if request.model:
            await threaded_server.fail(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")
        return pb.GetModelResponse(model=pb.Model(id="only"))

    threaded_server.on_call = answer
    with Client(threaded_server.target) as client:
        assert client.get_model().id == "only"
        with pytest.raises(NotFoundError) as caught:
            client.get_model("other")
    assert caught.value.reason == "UNKNOWN_MODEL"


def test_a_broken_stream_is_resumed(threaded_server: Any) -> None:
    server = threaded_server

    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "a")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    async def goes_on(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, resumed=True)
        yield server.delta(1, "b")
        yield server.finished(2)

    server.on_generate, server.on_resume = breaks, goes_on
    with Client(server.target, retry=FAST) as client:
        assert client.generate("x").text == "ab"


def test_gaps_are_noticed(threaded_server: Any) -> None:
    async def gap(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield threaded_server.accepted(request)
        yield threaded_server.delta(1, "b")

    threaded_server.on_generate = gap
    with Client(threaded_server.target) as client, pytest.raises(StreamCorruptError, match="output is missing"):
        client.generate("x")


def test_generate_many_keeps_order_and_gives_errors_in_place(threaded_server: Any) -> None:
    threaded_server.on_generate = threaded_server.words
    told: list[int] = []
    prompts: list[Any] = ["a", Job([-1]), Job("b", {"n": 2}), "c"]
    with Client(threaded_server.target) as client:
        results = client.generate_many(prompts, concurrency=2, on_result=lambda position, _: told.append(position))
    texts = [result.text if isinstance(result, Completion) else type(result) for result in results]
    assert texts == ["a ", InvalidArgumentError, "b ", "c "]
    assert sorted(told) == [0, 1, 2, 3]


async def _endless(server: Any, request: Any) -> AsyncIterator[Any]:
    yield server.accepted(request)
    offset = 0
    while True:
        yield server.delta(offset, "x")
        offset += 1
        await asyncio.sleep(0.001)


def test_deadline(threaded_server: Any) -> None:
    threaded_server.on_generate = lambda request, _: _endless(threaded_server, request)
    with Client(threaded_server.target) as client, pytest.raises(DeadlineExceededError) as caught:
        client.generate("x", timeout=1.0)
    assert caught.value.partial is not None
    assert set(caught.value.partial.text) == {"x"}


def test_another_thread_can_close_a_stream(threaded_server: Any) -> None:
    threaded_server.on_generate = lambda request, _: _endless(threaded_server, request)
    with Client(threaded_server.target) as client:
        generation = client.stream("x")
        next(generation)
        closer = threading.Thread(target=generation.close)
        closer.start()
        with pytest.raises(RequestCancelledError, match="was closed"):
            generation.wait()
        closer.join()


def test_a_batch_that_is_interrupted_ends_its_streams(threaded_server: Any) -> None:
    """Ctrl-C during a long batch returns at once instead of waiting for every answer."""
    gone = threading.Semaphore(0)
    begun: list[Any] = []
    both_slow_begun = asyncio.Event()

    async def quick_among_slow(request: Any, context: Any) -> AsyncIterator[Any]:
        if request.text != "quick":
            context.add_done_callback(lambda _: gone.release())
            begun.append(request)
            if len(begun) == 2:
                both_slow_begun.set()
            async for event in _endless(threaded_server, request):
                yield event
        await asyncio.wait_for(both_slow_begun.wait(), 60)
        async for event in threaded_server.words(request, context):
            yield event

    def interrupt(_position: int, _result: object) -> None:
        raise KeyboardInterrupt

    threaded_server.on_generate = quick_among_slow
    with Client(threaded_server.target) as client, pytest.raises(KeyboardInterrupt):
        client.generate_many(["quick", "slow", "slow", "later"], concurrency=3, on_result=interrupt)
    for _ in begun:
        assert gone.acquire(timeout=60)
