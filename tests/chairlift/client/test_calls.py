"""Methods beside generation, credentials, and options of connections."""

import asyncio
from typing import Any

import pytest

from chairlift.client import AsyncClient, CancelOutcome, RequestState, RetryPolicy, Tls
from chairlift.client.connection import KEEPALIVE_S, make_connection
from chairlift.runtime.settings import GatewaySettings
from chairlift.v1 import inference_pb2 as pb


def answering(*replies: Any) -> Any:
    left = list(replies)

    async def answer(_request: Any, _context: Any) -> Any:
        return left.pop(0)

    return answer


async def test_models_are_listed_over_all_pages(server: Any) -> None:
    limits = pb.Limits(max_choices=4, max_request_bytes=1 << 40)
    server.on_call = answering(
        pb.ListModelsResponse(models=[pb.Model(id="a", limits=limits, eos_token_ids=[2])], next_page_token="more"),
        pb.ListModelsResponse(models=[pb.Model(id="b", limits=pb.Limits(default_max_tokens=5))]),
    )
    async with AsyncClient(server.target) as client:
        first, second = await client.list_models()
    assert (first.id, first.eos_token_ids, first.limits.max_choices) == ("a", (2,), 4)
    assert first.limits.max_request_bytes == 1 << 40
    assert (first.limits.default_max_tokens, second.limits.default_max_tokens) == (None, 5)
    assert server.requests[1].page_token == "more"


async def test_a_server_far_away_is_reached(server: Any) -> None:
    """Connecting takes a few round trips; for once there is no repeat that would hide a failure."""
    server.on_call = answering(pb.GetModelResponse(model=pb.Model(id="a")))
    host, _, port = server.target.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        while data := await reader.read(1 << 16):
            await asyncio.sleep(delay_s)
            writer.write(data)
        writer.close()

    closed = asyncio.Event()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, there[1], 0.0), carry(there[0], writer, 0.4))
        await asyncio.gather(writer.wait_closed(), there[1].wait_closed())
        closed.set()

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as way:
        target = f"127.0.0.1:{way.sockets[0].getsockname()[1]}"
        async with AsyncClient(target, retry=RetryPolicy(max_attempts=1)) as client:
            assert (await client.get_model("a")).id == "a"
        await closed.wait()


async def test_get_model(server: Any) -> None:
    server.on_call = answering(pb.GetModelResponse(model=pb.Model(id="a", context_length=2048, dtype="bfloat16")))
    async with AsyncClient(server.target) as client:
        model = await client.get_model("a")
    assert (model.id, model.context_length, model.dtype) == ("a", 2048, "bfloat16")


async def test_tokenize_and_detokenize(server: Any) -> None:
    server.on_call = answering(
        pb.TokenizeResponse(token_ids=[1, 2], pieces=[b"a", b"\xff"]),
        pb.TokenizeResponse(),
        pb.DetokenizeResponse(text="ab"),
    )
    async with AsyncClient(server.target) as client:
        tokens = await client.tokenize("ab", add_special_tokens=False)
        await client.tokenize([{"role": "user", "content": "x"}])
        text = await client.detokenize([1, 2])
    assert (tokens.token_ids, tokens.pieces, text) == ((1, 2), (b"a", b"\xff"), "ab")
    plain, chat, ids = server.requests
    assert plain.HasField("add_special_tokens")
    assert not chat.HasField("add_special_tokens")
    assert chat.messages.messages[0].role == "user"
    assert not ids.HasField("skip_special_tokens")


async def test_cancel_and_explain(server: Any) -> None:
    share = pb.WaitShare(reason=pb.WAIT_REASON_KV_BLOCKS, wait_ms=1.5)
    server.on_call = answering(
        pb.CancelResponse(outcome=pb.CANCEL_OUTCOME_ALREADY_ENDED),
        pb.ExplainResponse(request_id="r", state=pb.REQUEST_STATE_RUNNING, wait_ms=1.5, waits=[share]),
    )
    async with AsyncClient(server.target) as client:
        assert await client.cancel("r") is CancelOutcome.ALREADY_ENDED
        explanation = await client.explain("r")
    assert explanation.state is RequestState.RUNNING
    assert explanation.waits == {"kv_blocks": 1.5}
    assert explanation.queue_position is None


async def test_the_token_goes_with_every_call(server: Any) -> None:
    server.on_generate, server.on_call = server.words, answering(pb.GetModelResponse())
    async with AsyncClient(server.target, token="secret") as client:
        await client.generate("x")
        await client.get_model()
    assert [metadata["authorization"] for metadata in server.metadata] == ["Bearer secret"] * 2


@pytest.mark.parametrize("target", ["example.org:50051", "10.0.0.1:50051", "[2001:db8::1]:50051"])
def test_a_token_does_not_cross_a_network_in_clear_text(target: str) -> None:
    with pytest.raises(ValueError, match="clear text"):
        make_connection(target, "secret", False, 30, allow_plaintext_token=False)
    make_connection(target, "secret", True, 30, allow_plaintext_token=False)
    make_connection(target, "secret", False, 30, allow_plaintext_token=True)


@pytest.mark.parametrize("target", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x.sock"])
def test_a_token_may_stay_on_this_machine(target: str) -> None:
    make_connection(target, "secret", False, 30, allow_plaintext_token=False)


def test_keepalive_agrees_with_the_gateways_default() -> None:
    """A client that pings faster than the server tolerates is cut off with too_many_pings."""
    assert GatewaySettings().min_client_ping_interval_s <= KEEPALIVE_S
    options = dict(make_connection("a:1", None, False, KEEPALIVE_S, allow_plaintext_token=False).options[0])
    assert options["grpc.keepalive_time_ms"] == KEEPALIVE_S * 1000
    assert options["grpc.keepalive_permit_without_calls"] == 0


def test_tls_file_that_cannot_be_read_is_named(tmp_path: Any) -> None:
    with pytest.raises(OSError, match=r"missing\.pem"):
        Tls(ca=tmp_path / "missing.pem").credentials()


def test_no_target_is_refused() -> None:
    with pytest.raises(ValueError, match="no target"):
        make_connection([], None, False, 30, allow_plaintext_token=False)
