"""Unary methods of both services over a real server."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome, Reason, WaitReason
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import ops_pb2

Spell = Callable[[str], list[int]]


async def test_tokenize_and_detokenize_are_each_others_inverse(rig: Any, spell: Spell) -> None:
    for text in ("", "the", "é<|end|>😀", "\0\x01"):
        tokens = await rig.stub.Tokenize(pb.TokenizeRequest(text=text))
        assert b"".join(tokens.pieces) == text.encode()
        back = await rig.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids, skip_special_tokens=False))
        assert back.text == text
    skipped = await rig.stub.Detokenize(pb.DetokenizeRequest(token_ids=[257, *spell("x"), 258]))
    assert skipped.text == "x"
    broken = await rig.stub.Detokenize(pb.DetokenizeRequest(token_ids=spell("😀")[:2]))
    assert broken.text == "\ufffd"


async def test_tokenize_shows_what_generate_computes(chat_rig: Any) -> None:
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=[pb.ContentPart(text="the <|end|>")])])
    tokens = await chat_rig.stub.Tokenize(pb.TokenizeRequest(messages=messages))
    assert b"".join(tokens.pieces) == b"<|start|>user\nthe <|end|><|end|><|start|>assistant\n"
    assert list(tokens.token_ids).count(258) == 1
    call = chat_rig.stub.Generate(pb.GenerateRequest(messages=messages))
    submit = await chat_rig.scheduler.next(front.Submit)
    assert submit.prompt == b"".join(token.to_bytes(4, "little") for token in tokens.token_ids)
    call.cancel()


@pytest.mark.parametrize(
    ("method", "request_message", "fields"),
    [
        ("Tokenize", pb.TokenizeRequest(), ["input"]),
        ("Tokenize", pb.TokenizeRequest(messages=pb.ChatMessages()), ["messages.messages"]),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1, 260]), ["token_ids[1]"]),
        ("Explain", pb.ExplainRequest(), ["request_id"]),
        ("ListModels", pb.ListModelsRequest(page_token="x"), ["page_token"]),
    ],
)
async def test_bad_queries_are_refused_by_field(rig: Any, method: str, request_message: Any, fields: list[str]) -> None:
    error = await rig.caller.error(getattr(rig.stub, method)(request_message))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, fields)


_FIELD_2000 = b"\x80\x7d\x01"
"""A number that none of our messages has, with the value 1."""


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("GetModel", pb.GetModelRequest),
        ("ListModels", pb.ListModelsRequest),
        ("Cancel", pb.CancelRequest),
        ("GetConfig", ops_pb2.GetConfigRequest),
        ("GetLoad", ops_pb2.GetLoadRequest),
        ("WatchLoad", ops_pb2.WatchLoadRequest),
        ("GetServerInfo", ops_pb2.GetServerInfoRequest),
    ],
)
async def test_what_this_server_does_not_know_is_refused(rig: Any, method: str, kind: Any) -> None:
    """A newer client relies on the field."""
    request = kind.FromString(_FIELD_2000)
    error = await rig.caller.error(getattr(rig.stub if hasattr(rig.stub, method) else rig.ops, method)(request))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["2000"])


async def test_the_model_and_the_limits_in_force(chat_rig: Any, model_info: front.ModelInfo) -> None:
    model = (await chat_rig.stub.GetModel(pb.GetModelRequest())).model
    assert list((await chat_rig.stub.ListModels(pb.ListModelsRequest(page_size=5))).models) == [model]
    assert (await chat_rig.stub.GetModel(pb.GetModelRequest(model="test"))).model == model
    assert (model.id, model.context_length, model.vocab_size, model.kv_capacity_tokens) == ("test", 128, 260, 1024)
    assert (model.dtype, model.quantization, model.fingerprint) == ("float32", "none", model_info.fingerprint)
    assert (list(model.eos_token_ids), model.has_chat_template, model.deterministic) == ([258], True, True)
    limits = model.limits
    assert (limits.max_prompt_tokens, limits.max_choices, limits.max_stop_strings) == (127, 16, 32)
    assert (limits.max_num_queued_reqs, limits.max_num_queued_tokens) == (100, 10_000)
    assert not limits.HasField("default_max_tokens")
    assert limits.max_request_duration_ms == 3_600_000


async def test_cancel_tells_what_it_met(rig: Any) -> None:
    for outcome in CancelOutcome:
        call = rig.stub.Cancel(pb.CancelRequest(request_id="r"))
        cancel = await rig.scheduler.next(front.Cancel)
        assert (cancel.tenant, cancel.request_id) == ("default", "r")
        rig.scheduler.send(front.CancelReply(cancel.query, outcome))
        assert (await call).outcome == outcome
    nothing = await rig.stub.Cancel(pb.CancelRequest(request_id=""))
    assert nothing.outcome == pb.CANCEL_OUTCOME_UNKNOWN
    assert rig.scheduler.heard(front.Cancel) == []


async def test_explain_sums_exactly(rig: Any) -> None:
    call = rig.stub.Explain(pb.ExplainRequest(request_id="r"))
    query = await rig.scheduler.next(front.ExplainQuery)
    waits = tuple((reason, 1_234_567 * reason + 1) for reason in WaitReason)
    rig.scheduler.send(
        front.ExplainReply(
            query.query, "r", "finishing", sum(ns for _, ns in waits), waits, 9_000_000_000, 5, 2, 1, 0, 3, 7, 11, 4
        )
    )
    answer = await call
    assert answer.wait_ms == sum(share.wait_ms for share in answer.waits)
    assert answer.wait_ms == pytest.approx(sum(ns for _, ns in waits) / 1e6, abs=0.01)
    assert [share.reason for share in answer.waits] == list(WaitReason)
    assert (answer.state, answer.total_ms, answer.iterations) == (pb.REQUEST_STATE_RUNNING, 9000.0, 5)
    assert (answer.cached_tokens, answer.prompt_tokens, answer.output_tokens) == (3, 7, 11)
    assert answer.queue_position == 4


async def test_explaining_what_is_not_there_is_not_found(rig: Any) -> None:
    call = rig.stub.Explain(pb.ExplainRequest(request_id="r"))
    query = await rig.scheduler.next(front.ExplainQuery)
    rig.scheduler.send(front.QueryFailed(query.query, Reason.UNKNOWN_REQUEST, "no"))
    assert (await rig.caller.error(call)).code is grpc.StatusCode.NOT_FOUND


async def test_load_is_the_schedulers_own_count(rig: Any) -> None:
    rig.scheduler.load = front.Load(
        running=3, waiting=2, blocks_total=10, blocks_free=4, blocks_cached=1, blocks_used=5, steps=77, worker_epoch=9
    )
    call = rig.stub.Generate(pb.GenerateRequest(text="x"))
    await rig.scheduler.accept()
    load = await rig.ops.GetLoad(ops_pb2.GetLoadRequest())
    (replica,) = load.replicas
    assert (replica.replica_id, replica.state, replica.scheduler_epoch) == ("replica-0", ops_pb2.REPLICA_STATE_READY, 7)
    assert (replica.num_running, replica.num_waiting, replica.totals.iterations) == (3, 2, 77)
    blocks = replica.kv_blocks
    assert (blocks.total, blocks.free + blocks.cached + blocks.used, blocks.block_size) == (10, 10, 16)
    assert replica.workers[0].state == ops_pb2.WORKER_STATE_BUSY
    assert (load.gateway.open_streams, load.gateway.is_draining) == (1, False)
    error = await rig.caller.error(rig.ops.GetLoad(ops_pb2.GetLoadRequest(replica_id="other")))
    assert (error.code, error.info.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REPLICA")
    call.cancel()


async def test_load_is_watched_again_and_again(rig: Any) -> None:
    call = rig.ops.WatchLoad(ops_pb2.WatchLoadRequest(interval=Duration(nanos=100_000_000)))
    for running in (1, 2, 3):
        rig.scheduler.load = front.Load(running=running)
        seen: list[int] = []
        async with asyncio.timeout(20):
            while running not in seen[-1:]:
                response = await call.read()
                assert response is not grpc.aio.EOF, f"the watch ended before {running} running were told: {seen}"
                seen.append(response.replicas[0].num_running)
    call.cancel()


async def test_changes_reach_the_replica_and_leave_an_audit_line(rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    drain = rig.ops.Drain(ops_pb2.DrainRequest(replica_id="replica-0", deadline=Duration(seconds=3), comment="upgrade"))
    command = await rig.scheduler.next(front.DrainCommand)
    assert (command.undrain, command.deadline_in_ns) == (False, 3 * 10**9)
    rig.scheduler.send(front.LoadReply(command.query, 7, True, True, front.Load()))
    (result,) = (await drain).results
    assert (result.replica_id, result.HasField("failure")) == ("replica-0", False)
    flush = rig.ops.FlushPrefixCache(ops_pb2.FlushPrefixCacheRequest(replica_id="all"))
    asked = await rig.scheduler.next(front.FlushPrefixCacheCommand)
    rig.scheduler.send(front.LoadReply(asked.query, 7, True, True, front.Load(), num_flushed=7))
    assert (await flush).results[0].num_blocks == 7
    terminate = rig.ops.TerminateRequest(ops_pb2.TerminateRequestRequest(tenant="t", request_id="r"))
    cancel = await rig.scheduler.next(front.Cancel)
    assert (cancel.tenant, cancel.request_id) == ("t", "r")
    rig.scheduler.send(front.CancelReply(cancel.query, CancelOutcome.WAS_WAITING))
    assert (await terminate).outcome == pb.CANCEL_OUTCOME_WAS_WAITING
    written = capsys.readouterr()
    lines = [line for line in (written.out + written.err).splitlines() if "audit" in line]
    assert [
        word in line for line, word in zip(lines, ("upgrade", "FlushPrefixCache", "TerminateRequest"), strict=True)
    ] == [
        True,
        True,
        True,
    ]


async def test_a_change_names_whom_it_changes(rig: Any) -> None:
    for call in (
        rig.ops.FlushPrefixCache(ops_pb2.FlushPrefixCacheRequest()),
        rig.ops.Drain(ops_pb2.DrainRequest()),
        rig.ops.Drain(ops_pb2.DrainRequest(gateway_id="another")),
        rig.ops.Drain(ops_pb2.DrainRequest(replica_id="replica-0", deadline=Duration(seconds=-1))),
    ):
        assert (await rig.caller.error(call)).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_drained_gateway_admits_nothing_until_it_is_undrained(rig: Any) -> None:
    name = rig.scheduler.hellos[0].gateway_id
    await rig.ops.Drain(ops_pb2.DrainRequest(gateway_id=name))
    error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(text="x")))
    assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert error.message == "this gateway is draining"
    assert (await rig.ops.GetLoad(ops_pb2.GetLoadRequest())).gateway.is_draining
    await rig.until(lambda: rig.service.state.ready() == (False, "draining"))
    await rig.ops.Undrain(ops_pb2.UndrainRequest(gateway_id=name))
    call = rig.stub.Generate(pb.GenerateRequest(text="x"))
    await rig.scheduler.accept()
    call.cancel()


async def test_a_scheduler_that_does_not_answer_is_told_as_such(start_rig: Any, settings: Any) -> None:
    ipc = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=0.5)
    async with start_rig(ipc=ipc) as rig:
        cancelled = await rig.stub.Cancel(pb.CancelRequest(request_id="r"))
        assert cancelled.outcome == pb.CANCEL_OUTCOME_UNKNOWN
        drained = await rig.ops.Drain(ops_pb2.DrainRequest(replica_id="replica-0"))
        assert drained.results[0].failure.reason == "NO_SCHEDULER"
        rig.scheduler.freeze()
        load = await rig.ops.GetLoad(ops_pb2.GetLoadRequest())
        assert load.replicas[0].state == ops_pb2.REPLICA_STATE_UNREACHABLE
