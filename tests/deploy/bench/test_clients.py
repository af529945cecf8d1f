"""The two real clients against real servers with scripted delays, on loopback."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.summary import summarize_run
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import StreamClient, TargetError
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadGenerator, LoadPlan
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget
from deploy.bench.load.openai_client import OpenAIClient, OpenAIOptions
from deploy.bench.load.record import Outcome, RequestRecord, digest_tokens
from deploy.bench.stand_in import Script, start_stand_in
from deploy.bench.workload.request import BenchRequest, Session


@asynccontextmanager
async def grpc_stand_in(script: Script) -> AsyncIterator[GrpcClient]:
    server, address = await start_stand_in(script)
    client = GrpcClient(GrpcTarget(address=address), MonotonicClock(), num_connections=2)
    try:
        yield client
    finally:
        await client.close()
        await server.stop(grace=0)


def sessions(number: int, **values: Any) -> Iterator[Session]:
    fields: dict[str, Any] = {"prompt": (5, 6, 7), "output_tokens": 10} | values
    request = BenchRequest(**fields)
    return itertools.repeat(Session((request,)), number)


async def play(client: StreamClient, plan: LoadPlan, work: Iterator[Session]) -> list[RequestRecord]:
    return await LoadGenerator(client, plan, MonotonicClock()).run(work)


async def test_delays_of_a_real_server_are_reported() -> None:
    """40 ms and then 5 ms a token. Exactness is shown in virtual time; here no figure can be less than its delay."""
    async with grpc_stand_in(Script(ttft_ms=40.0, itl_ms=5.0)) as client:
        records = await play(client, LoadPlan(arrivals=Arrivals(rate=30.0)), sessions(40, output_tokens=21))
    summary = summarize_run(records, Objectives())
    medians = {name: latency.percentiles[50.0] for name, latency in summary.latencies.items()}
    print({name: round(value, 3) for name, value in medians.items()}, f"late sending {summary.send_lag_p99_ms:.2f} ms")
    assert medians["ttft"] >= 40.0
    assert medians["e2el"] >= 140.0
    assert medians["tpot"] == pytest.approx(5.0, abs=0.5)  # first to last token: what is late in between cancels out
    assert summary.completed == 40
    assert summary.total_output_tokens == 840
    assert summary.total_input_tokens == 120


async def test_token_ids_are_taken_where_they_are_wanted() -> None:
    async with grpc_stand_in(Script(tokens_per_delta=3)) as client:
        (with_ids,) = await play(client, LoadPlan(concurrency=1, wants_ids=True), sessions(1, output_tokens=7))
        (without,) = await play(client, LoadPlan(concurrency=1), sessions(1, output_tokens=7))
    assert with_ids.delta_tokens == [3, 3, 1]
    assert with_ids.digest == digest_tokens(range(1000, 1007))
    assert without.digest == ""
    assert with_ids.finish_reason == "LENGTH"


async def test_a_refusal_is_counted_and_not_repeated() -> None:
    async with grpc_stand_in(Script(refuse_from=2)) as client:
        records = await play(client, LoadPlan(concurrency=1), sessions(4))
    assert [record.outcome for record in records] == [Outcome.OK, Outcome.OK, Outcome.REFUSED, Outcome.REFUSED]
    assert records[3].reason == "RESOURCE_EXHAUSTED"


async def test_a_request_that_takes_too_long_is_timed_out() -> None:
    async with grpc_stand_in(Script(ttft_ms=10.0, itl_ms=60_000.0)) as client:
        (record,) = await play(client, LoadPlan(concurrency=1, timeout_s=0.3), sessions(1))
    assert record.outcome is Outcome.TIMED_OUT
    assert record.output_tokens == 1


async def test_a_client_that_goes_away_ends_its_stream_there() -> None:
    async with grpc_stand_in(Script(itl_ms=1.0)) as client:
        (record,) = await play(client, LoadPlan(concurrency=1), sessions(1, output_tokens=5000, abandon_after=4))
    assert record.outcome is Outcome.ABANDONED
    assert record.output_tokens == 4


async def test_a_server_that_is_not_there_is_named() -> None:
    client = GrpcClient(GrpcTarget(address="127.0.0.1:1"), MonotonicClock())
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
        await client.describe()
    (record,) = await play(client, LoadPlan(concurrency=1), sessions(1))
    assert (record.outcome, record.reason) == (Outcome.REFUSED, "UNAVAILABLE")
    await client.close()


def test_a_key_does_not_cross_a_network_in_clear_text() -> None:
    with pytest.raises(TargetError, match="clear text"):
        GrpcClient(GrpcTarget(address="192.0.2.1:50051", api_key="k"), MonotonicClock())


MODELS = json.dumps({"data": [{"id": "peer", "max_model_len": 2048}]}).encode()
EVENTS = [
    {"choices": [{"text": " a"}]},
    {"choices": [{"text": " b c"}]},
    {"choices": [{"text": "", "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
]


@asynccontextmanager
async def http_peer(
    events: list[object], *, status: int = 200, is_chunked: bool = True, gap_s: float = 0.0
) -> AsyncIterator[tuple[OpenAIClient, list[dict[str, object]]]]:
    """A server of OpenAI's interface; the bodies that it was sent."""
    bodies: list[dict[str, object]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
        body = await reader.readexactly(length)
        if head.startswith("GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(MODELS), MODELS))
        else:
            bodies.append(json.loads(body))
            framing = b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
            writer.write(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, framing))
            for event in events:
                await asyncio.sleep(gap_s)
                data = b"data: %b\r\n\r\n" % (event if isinstance(event, bytes) else json.dumps(event).encode())
                # An event may be cut anywhere by the network.
                for part in (data[:9], data[9:]):
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
                    await writer.drain()
            writer.write(b"0\r\n\r\n" if is_chunked else b"")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = OpenAIClient(OpenAIOptions(base_url=f"http://127.0.0.1:{port}/v1"), MonotonicClock())
    async with server:
        yield client, bodies


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_http_peer_is_measured_alike(is_chunked: bool) -> None:
    """Two text events and a usage of five tokens: they are spread over the events, and the gap over its tokens."""
    async with http_peer([*EVENTS, b"[DONE]"], is_chunked=is_chunked, gap_s=0.02) as (client, bodies):
        model = await client.describe()
        (record,) = await play(client, LoadPlan(concurrency=1), sessions(1, output_tokens=5))
    assert (model.name, model.max_model_len) == ("peer", 2048)
    assert bodies[0]["prompt"] == [5, 6, 7]
    assert (bodies[0]["model"], bodies[0]["max_tokens"], bodies[0]["ignore_eos"]) == ("peer", 5, True)
    assert (record.outcome, record.output_tokens, record.prompt_tokens) == (Outcome.OK, 5, 3)
    assert record.delta_tokens == [3, 2]
    assert record.ttft_ms >= 20
    assert record.finish_reason == "LENGTH"


@pytest.mark.parametrize(
    ("events", "status", "outcome", "reason"),
    [
        (EVENTS[:2], 200, Outcome.FAILED, "BROKEN_STREAM"),
        ([{"error": {"message": "no"}}], 200, Outcome.FAILED, "ERROR_EVENT"),
        ([b"{"], 200, Outcome.FAILED, "BAD_EVENT"),
        ([], 429, Outcome.REFUSED, "HTTP 429"),
        ([], 500, Outcome.FAILED, "HTTP 500"),
    ],
)
async def test_what_goes_wrong_at_an_http_peer_is_told(
    events: list[object], status: int, outcome: Outcome, reason: str
) -> None:
    async with http_peer(events, status=status) as (client, _):
        await client.describe()
        (record,) = await play(client, LoadPlan(concurrency=1), sessions(1))
    assert (record.outcome, record.reason) == (outcome, reason)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/v1", "http://"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match="expected http"):
        OpenAIClient(OpenAIOptions(base_url=url), MonotonicClock())
