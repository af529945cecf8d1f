"""What is repeated, what is resumed, and what is left to the caller."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from chairlift.client import (
    AbortedError,
    AsyncClient,
    CancelOutcome,
    Client,
    Completion,
    RequestCancelledError,
    ResourceExhaustedError,
    RetryPolicy,
    StreamBrokenError,
    StreamCorruptError,
    UnavailableError,
)
from chairlift.client.connection import make_connection
from chairlift.v1 import inference_pb2 as pb

FAST = RetryPolicy(initial_backoff_s=0.001)


def retry_after(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


class Refusals:
    """Refuses the first calls, then answers."""

    def __init__(self, server: Any, number: int, code: grpc.StatusCode, *details: Any) -> None:
        self._server, self._left, self._code, self._details = server, number, code, details

    async def __call__(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if self._left:
            self._left -= 1
            await self._server.fail(context, self._code, "QUEUE_FULL", *self._details)
        async for event in self._server.words(request, context):
            yield event


async def test_a_refused_request_is_repeated_with_its_id(server: Any) -> None:
    """Without one id the repeat would be a second request (and a second bill)."""
    server.on_generate = Refusals(server, 2, grpc.StatusCode.UNAVAILABLE)
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("one")).text == "one "
    assert len(server.requests) == 3
    assert len({request.request_id for request in server.requests}) == 1


async def test_repeats_are_bounded(server: Any) -> None:
    server.on_generate = Refusals(server, 9, grpc.StatusCode.UNAVAILABLE)
    async with AsyncClient(server.target, retry=FAST) as client:
        with pytest.raises(UnavailableError):
            await client.generate("one")
    assert len(server.requests) == FAST.max_attempts


async def test_want_of_room_is_repeated_only_when_the_server_says_when(server: Any) -> None:
    server.on_generate = Refusals(server, 1, grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after(0.001))
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("one")).text == "one "
        server.on_generate = Refusals(server, 1, grpc.StatusCode.RESOURCE_EXHAUSTED)
        with pytest.raises(ResourceExhaustedError):
            await client.generate("one")


async def test_a_retry_time_beyond_the_deadline_is_not_waited_for(server: Any) -> None:
    server.on_generate = Refusals(server, 1, grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after(3600))
    async with AsyncClient(server.target, retry=FAST) as client:
        with pytest.raises(ResourceExhaustedError):
            await client.generate("one", timeout=5)
    assert len(server.requests) == 1


async def test_a_batch_waits_for_room_as_long_as_it_takes(server: Any) -> None:
    server.on_generate = Refusals(server, 20, grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after(0.001))
    async with AsyncClient(server.target, retry=FAST) as client:
        results = await client.generate_many(["one", "two"], concurrency=1)
    assert [result.text for result in results if isinstance(result, Completion)] == ["one ", "two "]


async def test_the_next_gateway_is_used_when_one_does_not_answer(server: Any) -> None:
    server.on_generate = server.words
    async with AsyncClient(["127.0.0.1:1", server.target], retry=FAST) as client:
        assert (await client.generate("one")).text == "one "


async def _broken_after_two(server: Any, request: Any) -> AsyncIterator[Any]:
    yield server.accepted(request)
    yield server.delta(0, "a", index=1)
    yield server.delta(0, "AB", index=0, num_tokens=2)


async def test_a_broken_stream_is_taken_up_where_it_broke(server: Any, other_server: Any) -> None:
    """Nothing twice, nothing missing: each choice goes on from its own offset, through another gateway."""

    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in _broken_after_two(server, request):
            yield event
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    async def goes_on(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield other_server.accepted(request, resumed=True, stream_token="token-2")
        yield other_server.delta(1, "b", index=1)
        yield other_server.finished(2, index=1)
        yield other_server.finished(2, index=0)

    server.on_generate, other_server.on_resume = breaks, goes_on
    async with AsyncClient([server.target, other_server.target], retry=FAST) as client:
        completion = await client.generate("x", n=2)
    assert [choice.text for choice in completion.choices] == ["AB", "ab"]
    resume = other_server.requests[0]
    assert (resume.request_id, resume.stream_token) == (server.requests[0].request_id, "token-1")
    assert {item.index: item.offset for item in resume.offsets} == {0: 2, 1: 1}


async def test_a_stream_that_just_ends_is_broken_too(server: Any) -> None:
    async def ends_early(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "a")

    async def goes_on(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, resumed=True)
        yield server.delta(1, "b")
        yield server.finished(2)

    server.on_generate, server.on_resume = ends_early, goes_on
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("x")).text == "ab"


async def test_ends_that_were_told_already_may_be_told_again_after_a_break(server: Any) -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.finished(0, index=0)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    async def goes_on(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, resumed=True)
        yield server.finished(0, index=0)
        yield server.finished(0, index=1)

    server.on_generate, server.on_resume = breaks, goes_on
    async with AsyncClient(server.target, retry=FAST) as client:
        assert len((await client.generate("x", n=2)).choices) == 2


async def test_a_connection_lost_after_the_last_end_loses_nothing(server: Any) -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in server.words(request, context):
            yield event
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    server.on_generate = breaks
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("one")).text == "one "


async def test_a_server_that_cannot_resume_leaves_the_caller_what_came(server: Any) -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "a")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    server.on_generate = breaks
    async with AsyncClient(server.target, retry=FAST) as client:
        with pytest.raises(StreamBrokenError, match="connection reset; it could not be resumed") as caught:
            await client.generate("x")
    assert caught.value.partial is not None
    assert caught.value.partial.text == "a"
    assert len(server.requests) == 2


async def test_resumptions_without_progress_are_bounded(server: Any) -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, resumed=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    server.on_generate = server.on_resume = breaks
    briefly = msgspec.structs.replace(FAST, resume_for_s=0.2)
    async with AsyncClient(server.target, retry=briefly) as client:
        with pytest.raises(StreamBrokenError):
            await client.generate("x")
    assert len(server.requests) > 1


async def test_a_stream_outlives_more_failures_than_attempts(server: Any) -> None:
    """A gateway's restart takes seconds: what bounds resumption is time, not the number of refused connections."""
    failures = 2 * FAST.max_attempts

    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request, resumed=True)
        if len(server.requests) > failures:
            yield server.delta(0, "x ")
            yield server.finished(1)
        else:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    server.on_generate = server.on_resume = breaks
    async with AsyncClient(server.target, retry=FAST) as client:
        completion = await client.generate("x")
    assert completion.finish_reason is not None
    assert len(server.requests) == failures + 1


async def test_a_superseded_stream_is_not_taken_back(server: Any) -> None:
    """Two clients that resume one request must not steal it from each other for ever."""

    async def superseded(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        await server.fail(context, grpc.StatusCode.ABORTED, "SUPERSEDED")

    server.on_generate = superseded
    async with AsyncClient(server.target, retry=FAST) as client:
        with pytest.raises(AbortedError) as caught:
            await client.generate("x")
    assert caught.value.reason == "SUPERSEDED"
    assert len(server.requests) == 1


class Endless:
    """A stream without an end, that notices when its client has gone."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.begun.set()
        context.add_done_callback(lambda _: self.gone.set())
        yield self._server.accepted(request)
        offset = 0
        while not self.cancelled.is_set():
            yield self._server.delta(offset, "x")
            offset += 1
            await asyncio.sleep(0.001)
        yield self._server.finished(offset, reason=pb.FINISH_REASON_CANCELLED)
        await self._server.fail(context, grpc.StatusCode.CANCELLED, "CANCELLED")

    async def cancel(self, _request: Any, _context: Any) -> Any:
        self.cancelled.set()
        return pb.CancelResponse(outcome=pb.CANCEL_OUTCOME_WAS_RUNNING)


@pytest.fixture
def endless(server: Any) -> Endless:
    script = Endless(server)
    server.on_generate, server.on_call = script.generate, script.cancel
    return script


async def test_leaving_a_stream_early_ends_it_on_the_server(server: Any, endless: Endless) -> None:
    """A request that ends with its stream needs no word of its own."""
    async with AsyncClient(server.target, retry=RetryPolicy(detach_grace_s=0)) as client:
        async with client.stream("x") as generation:
            async for _ in generation:
                break
        await asyncio.wait_for(endless.gone.wait(), 30)
    assert not endless.cancelled.is_set()


async def test_leaving_a_stream_cancels_what_would_outlive_it(server: Any, endless: Endless) -> None:
    """With detach_grace, which is the default, the end of a stream does not end the request: the client says so."""
    async with AsyncClient(server.target) as client, client.stream("x") as generation:
        await anext(generation)
    assert endless.cancelled.is_set()


def test_leaving_a_stream_cancels_it_without_an_event_loop_too(threaded_server: Any) -> None:
    script = Endless(threaded_server)
    threaded_server.on_generate, threaded_server.on_call = script.generate, script.cancel
    with Client(threaded_server.target) as client, client.stream("x") as generation:
        next(generation)
    assert script.cancelled.is_set()


async def test_a_stream_that_contradicts_itself_is_cancelled(server: Any, endless: Endless) -> None:
    async def repeats(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "a")
        yield server.delta(0, "a")

    server.on_generate = repeats
    async with AsyncClient(server.target) as client:
        with pytest.raises(StreamCorruptError):
            await client.generate("x")
    assert endless.cancelled.is_set()


@pytest.mark.parametrize(
    ("retry", "options", "expected_s"),
    [
        (RetryPolicy(), {}, 30),
        (RetryPolicy(), {"detach_grace": 7.0}, 7),
        (RetryPolicy(), {"detach_grace": 0.0}, 0),
        (RetryPolicy(max_attempts=1), {}, None),
        (RetryPolicy(detach_grace_s=0), {}, None),
    ],
)
async def test_what_the_server_is_asked_to_keep(
    server: Any, retry: RetryPolicy, options: Any, expected_s: int | None
) -> None:
    server.on_generate = server.words
    async with AsyncClient(server.target, retry=retry) as client:
        await client.generate("x", **options)
    delivery = server.requests[0].delivery
    assert (delivery.detach_grace.seconds if delivery.HasField("detach_grace") else None) == expected_s


async def test_from_a_gateway_that_drains_a_new_connection_leads_elsewhere(server: Any) -> None:
    """Gateways share a port: who stays on the connection to the one that drains is refused until that is gone."""
    peers: list[str] = []

    async def drains_at_first(request: Any, context: Any) -> AsyncIterator[Any]:
        peers.append(context.peer())
        if len(peers) == 1:
            await server.fail(context, grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_after(0.001))
        async for event in server.words(request, context):
            yield event

    server.on_generate = drains_at_first
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("one")).text == "one "
        assert (await client.generate("two")).text == "two "
    assert peers[0] != peers[1] == peers[2]


async def test_a_gateway_without_room_does_not_end_a_broken_stream(server: Any) -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    async def is_full_at_first(request: Any, context: Any) -> AsyncIterator[Any]:
        if len(server.requests) == 2:
            await server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS", retry_after(0.001))
        yield server.accepted(request, resumed=True)
        yield server.delta(0, "a")
        yield server.finished(1)

    server.on_generate, server.on_resume = breaks, is_full_at_first
    async with AsyncClient(server.target, retry=FAST) as client:
        assert (await client.generate("x")).text == "a"


async def test_a_token_in_a_file_is_the_one_that_is_there_now(server: Any, tmp_path: Path) -> None:
    server.on_generate = server.words
    path = tmp_path / "token"
    async with AsyncClient(server.target, token=path) as client:
        for token in ("first", "second"):
            path.write_text(f"{token}\n")
            await client.generate("x")
    assert [seen["authorization"] for seen in server.metadata] == ["Bearer first", "Bearer second"]


def test_a_connection_does_not_show_its_token() -> None:
    connection = make_connection("127.0.0.1:1", "SECRET", False, 30.0, allow_plaintext_token=False)
    assert "SECRET" not in f"{connection!r} {connection} {connection.token!r}"
    assert connection.metadata == (("authorization", "Bearer SECRET"),)


async def test_cancelling_the_task_ends_the_stream(server: Any, endless: Endless) -> None:
    async with AsyncClient(server.target) as client:
        task = asyncio.create_task(client.generate("x"))
        await asyncio.wait_for(endless.begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(endless.gone.wait(), 30)


async def test_cancel_by_the_server_reaches_the_reader(server: Any, endless: Endless) -> None:
    async with AsyncClient(server.target) as client, client.stream("x") as generation:
        await anext(generation)
        assert await generation.cancel() is CancelOutcome.WAS_RUNNING
        with pytest.raises(RequestCancelledError) as caught:
            await generation.wait()
    assert caught.value.reason == "CANCELLED"


async def test_closing_while_another_task_reads(server: Any, endless: Endless) -> None:
    async with AsyncClient(server.target) as client:
        generation = client.stream("x")
        await anext(generation)
        reader = asyncio.create_task(generation.wait())
        await asyncio.sleep(0)
        await generation.aclose()
        with pytest.raises(RequestCancelledError, match="was closed"):
            await reader
