"""The link to the scheduler: greeting, refusal, loss, nonsense, and what becomes of requests meanwhile."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import msgspec
import pytest

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, HelloRefused, HelloWanted, Reason
from chairlift.ipc.tokens import pack_u32, pack_u64, unpack_u32
from chairlift.v1 import inference_pb2 as pb

Spell = Callable[[str], list[int]]


def _request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "hi"} | fields))


async def test_greets_with_version_tags_and_fingerprint(rig: Any, model_info: front.ModelInfo) -> None:
    (hello,) = rig.scheduler.hellos
    assert (hello.major, hello.minor, hello.fingerprint) == (1, 1, model_info.fingerprint)
    assert set(front.to_gateway_codec().tags) == set(hello.tags)
    assert hello.gateway_epoch > 0


async def test_a_goodbye_is_said_at_the_end(start_rig: Any) -> None:
    async with start_rig() as rig:
        scheduler = rig.scheduler
        rig.stop.request()
        await rig.running
        await rig.service.close()
        assert (await scheduler.next(front.GatewayBye)).gateway_epoch == scheduler.hellos[0].gateway_epoch


@pytest.mark.parametrize(
    "answer",
    [
        HelloRefused(Reason.FINGERPRINT_MISMATCH, "another model runs here"),
        front.SchedulerHello(2, 0, (), "r", 1, front.ReplicaLimits(1, 1, 1, 1, 16), True, False),
    ],
)
async def test_a_scheduler_that_cannot_be_spoken_to_makes_the_gateway_unready(rig: Any, answer: Any) -> None:
    rig.scheduler.answer_hello = answer
    rig.scheduler.send(HelloWanted(8))
    reasons = ("another model runs here", "protocol 2.0")
    await rig.until(lambda: any(reason in rig.service.state.ready()[1] for reason in reasons))
    error = await rig.caller.error(rig.stub.Generate(_request()))
    assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_SCHEDULER")
    assert error.retry.HasField("retry_delay")


async def test_readiness_follows_the_replica(rig: Any) -> None:
    rig.scheduler.draining = True
    rig.scheduler.announce()
    await rig.until(lambda: not rig.service.state.ready()[0])
    error = await rig.caller.error(rig.stub.Generate(_request()))
    assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    rig.scheduler.draining, rig.scheduler.model = False, None
    rig.scheduler.announce()
    await rig.until(lambda: rig.service._replicas.model is None)
    for call in (rig.stub.Generate(_request()), rig.stub.GetModel(pb.GetModelRequest())):
        error = await rig.caller.error(call)
        assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")


async def test_a_news_of_an_earlier_life_is_ignored(rig: Any) -> None:
    rig.scheduler.send(front.ReplicaState(6, False, True, None))
    rig.scheduler.send(front.ReplicaBeat(6, front.Load(running=99)))
    await rig.stub.Tokenize(pb.TokenizeRequest(text="x"))
    call = rig.stub.Generate(_request())
    await rig.scheduler.accept()
    assert rig.service.state.ready()[0]
    assert rig.service._replicas.links[0].load.running == 0
    call.cancel()


async def _begin(rig: Any, spell: Spell, text: str, **fields: Any) -> tuple[Any, front.Submit]:
    """A stream that has had `text`, and its Submit."""
    call = rig.stub.Generate(_request(**fields))
    submit = await rig.scheduler.accept()
    await rig.caller.event(call, "accepted")
    for offset, token in enumerate(spell(text)):
        rig.scheduler.tokens(submit.handle, offset, token)
        await rig.caller.event(call, "delta")
    return call, submit


async def test_a_stream_outlives_its_scheduler(rig: Any, spell: Spell) -> None:
    """It is submitted again with what the client may have seen, and goes on without a gap or a repeat."""
    call, first = await _begin(rig, spell, "abc", request_id="r", sampling=pb.Sampling(n=2, seed=5))
    rig.scheduler.tokens(first.handle + 1, 0, *spell("x"))
    rig.scheduler.finish(first.handle + 1, 1, request_ended=False)
    assert (await rig.caller.event(call, "delta")).index == 1
    assert (await rig.caller.event(call, "finished")).index == 1
    await rig.scheduler.stop()
    await rig.scheduler.start_again()
    again = await rig.scheduler.next(front.Submit)
    assert (again.request_id, again.attempt, again.digest) == ("r", 2, first.digest)
    assert again.handle != first.handle
    assert again.sampling == first.sampling
    assert [list(unpack_u32(ids)) for ids in again.emitted] == [spell("abc"), spell("x")]
    assert again.ended == (1,)
    assert again.age_ns > 0
    rig.scheduler.send(front.Accepted(again.handle, 1, 0))
    rig.scheduler.tokens(again.handle, 3, *spell("d"))
    rig.scheduler.finish(again.handle, 4)
    delta = await rig.caller.event(call, "delta")
    assert (delta.index, delta.offset, delta.text) == (0, 3, "d")
    assert (await rig.caller.event(call, "finished")).usage.output_tokens == 4
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_scheduler_that_forgot_the_gateway_gets_the_requests_again(rig: Any, spell: Spell) -> None:
    """The same life of the scheduler still has the request: everything so far comes, and is taken once."""
    call, _ = await _begin(rig, spell, "ab")
    rig.scheduler.send(HelloWanted(7))
    again = await rig.scheduler.next(front.Submit)
    assert again.attempt == 2
    rig.scheduler.send(front.Attached(again.handle, 1, 2, 1, 0, (pack_u32(spell("abcd")),), again.gateway_state))
    rig.scheduler.tokens(again.handle, 4, *spell("e"))
    rig.scheduler.finish(again.handle, 5)
    events = await rig.caller.events(call)
    assert "".join(event.delta.text for event in events if event.HasField("delta")) == "cde"


async def test_a_silent_scheduler_counts_as_lost(start_rig: Any, settings: Any, spell: Spell) -> None:
    """vllm#39863: a dead peer goes unseen."""
    ipc = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=0.6)
    async with start_rig(ipc=ipc) as rig:
        call, _ = await _begin(rig, spell, "a")
        rig.scheduler.freeze()
        await rig.until(lambda: not rig.service.state.ready()[0])
        await rig.scheduler.stop()
        await rig.scheduler.start_again()
        again = await rig.scheduler.accept()
        rig.scheduler.finish(again.handle, 1)
        assert (await rig.caller.events(call))[-1].finished.usage.output_tokens == 1


async def test_a_scheduler_that_rests_is_not_silent_until_it_is_asked(start_rig: Any, settings: Any) -> None:
    ipc = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=0.3)
    async with start_rig(ipc=ipc) as rig:
        rig.scheduler.be_quiet()
        rig.scheduler.send(front.ReplicaBeat(rig.scheduler.epoch, front.Load(running=3), 60_000_000_000))
        link = rig.service._replicas.links[0]
        await rig.until(lambda: link.load.running == 3)
        assert link.silence_s < -50
        rig.scheduler.freeze()
        call = rig.stub.Generate(_request())
        await rig.until(lambda: not rig.service.state.ready()[0])
        call.cancel()
        await rig.scheduler.stop()
        await rig.scheduler.start_again()
        await rig.until(lambda: rig.service.state.ready()[0])


async def test_a_gateway_rests_until_a_stream_opens(start_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watch over slow clients and orphans must not begin only at the end of the rest."""
    monkeypatch.setattr("gateway.service._IDLE_TICK_S", 1e6)
    async with start_rig() as rig:
        state, soon = rig.service.state, time.monotonic() + 60
        await rig.until(lambda: state.lives_until > soon)
        call = rig.stub.Generate(_request())
        await rig.scheduler.accept()
        await rig.until(lambda: state.lives_until < soon)
        call.cancel()
        await rig.until(lambda: state.lives_until > soon)


async def test_beats_are_answered_and_sent_unasked(start_rig: Any, settings: Any) -> None:
    """An answer costs neither end a wake of its own. One that nothing is heard of still learns that a gateway lives."""
    ipc = msgspec.structs.replace(settings.ipc, heartbeat_interval_s=0.4, heartbeat_timeout_s=30.0)
    async with start_rig(ipc=ipc) as rig:
        await rig.until(lambda: rig.scheduler.num_beats >= 2)
        rig.scheduler.send(front.ReplicaBeat(rig.scheduler.epoch, front.Load(running=3)))
        await rig.until(lambda: rig.service._replicas.links[0].load.running == 3)
        rig.scheduler.be_quiet()
        beats = rig.scheduler.num_beats
        await rig.until(lambda: rig.scheduler.num_beats >= beats + 2)


async def test_a_gap_in_the_output_makes_the_link_start_anew(rig: Any, spell: Spell) -> None:
    call, submit = await _begin(rig, spell, "ab")
    rig.scheduler.tokens(submit.handle, 5, *spell("z"))
    again = await rig.scheduler.accept()
    assert list(unpack_u32(again.emitted[0])) == spell("ab")
    rig.scheduler.tokens(again.handle, 2, *spell("c"))
    rig.scheduler.finish(again.handle, 3)
    events = await rig.caller.events(call)
    assert "".join(event.delta.text for event in events if event.HasField("delta")) == "c"


async def test_malformed_frames_are_counted_and_dropped(rig: Any, spell: Spell) -> None:
    call, submit = await _begin(rig, spell, "a")
    link = rig.service._replicas.links[0]
    good = front.to_gateway_codec().encode(front.Finished(submit.handle, 1, 1))
    frames = [b"", b"\xc1", b"\x92\x63\x01", good[:-1], b"\x91\x00" * 100]
    for frame in frames:
        rig.scheduler.send_frame(rig.scheduler.identity, frame)
    rig.scheduler.tokens(submit.handle, 1, *spell("b"))
    assert (await rig.caller.event(call, "delta")).text == "b"
    assert link.malformed == len(frames)
    call.cancel()


@pytest.mark.parametrize(
    "message",
    [
        front.Deltas(pack_u64([256]), pack_u32([0]), pack_u32([1, 2])),
        front.Deltas(pack_u64([256]), b"", pack_u32([1])),
        front.Deltas(b"123", b"", b""),
        front.Deltas(pack_u64([256]), pack_u32([0]), pack_u32([1, 2]), pack_u32([3])),
    ],
)
async def test_columns_that_do_not_fit_make_the_link_start_anew(rig: Any, spell: Spell, message: Any) -> None:
    call, _ = await _begin(rig, spell, "a")
    rig.scheduler.send(message)
    again = await rig.scheduler.accept()
    rig.scheduler.finish(again.handle, 1)
    assert (await rig.caller.events(call))[-1].finished.reason == pb.FINISH_REASON_LENGTH


async def test_messages_for_nobody_are_ignored(rig: Any, spell: Spell) -> None:
    call, submit = await _begin(rig, spell, "a")
    for message in (
        front.Deltas(pack_u64([999_936]), pack_u32([7]), pack_u32([1])),
        front.Finished(submit.handle + 5, 1, 0),
        front.Accepted(999_936, 1, 0),
        front.Attached(999_936, 1, 1, 1, 0, (b"",), b""),
        front.Refused(999_936, "X", "y"),
        front.Superseded(999_936),
        front.CancelReply(999, 1),
        front.QueryFailed(999, "X", "y"),
        front.Accepted(submit.handle, 9, 9),
    ):
        rig.scheduler.send(message)
    rig.scheduler.tokens(submit.handle, 1, *spell("b"))
    rig.scheduler.finish(submit.handle, 2)
    events = await rig.caller.events(call)
    assert [event.WhichOneof("event") for event in events] == ["delta", "finished"]


async def test_a_request_whose_scheduler_stays_away_ends_in_time(
    start_rig: Any, settings: Any, spell: Spell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_rig() as rig:
        table = rig.service._table
        monkeypatch.setattr(table, "_limits", msgspec.structs.replace(table._limits, orphan_grace_s=0.3))
        call, _ = await _begin(rig, spell, "ab")
        await rig.scheduler.stop()
        finished = await rig.caller.event(call, "finished")
        assert (finished.reason, finished.failure.reason) == (pb.FINISH_REASON_ERROR, "NO_SCHEDULER")
        assert finished.usage.output_tokens == 2
        error = await rig.caller.error(call)
        assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_SCHEDULER")
        await rig.scheduler.start_again()


async def test_a_deadline_holds_while_no_scheduler_does(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(), timeout=1.5)
    submit = await rig.scheduler.accept()
    await rig.caller.event(call, "accepted")
    rig.scheduler.tokens(submit.handle, 0, *spell("a"))
    await rig.scheduler.stop()
    error = await rig.caller.error(call)
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await rig.until(lambda: rig.service._table.num_open == 0)
    await rig.scheduler.start_again()


async def test_a_stop_string_found_before_the_loss_needs_no_scheduler(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(stopping=pb.Stopping(stop=["b"])))
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("ab"))
    await rig.scheduler.next(front.Stopped)
    await rig.scheduler.stop()
    events = await rig.caller.events(call)
    assert (events[-1].finished.reason, events[-1].finished.stop.text) == (pb.FINISH_REASON_STOP_STRING, "b")
    assert events[-1].finished.usage.output_tokens == 2
    await rig.scheduler.start_again()


async def test_a_refusal_of_a_request_that_was_in_before_ends_its_choices(rig: Any, spell: Spell) -> None:
    call, _ = await _begin(rig, spell, "a")
    rig.scheduler.send(HelloWanted(7))
    again = await rig.scheduler.next(front.Submit)
    rig.scheduler.send(front.Refused(again.handle, Reason.NO_WORKER, "not yet", retry_after_ns=1))
    third = await rig.scheduler.next(front.Submit)
    assert third.attempt == 3
    rig.scheduler.send(front.Refused(third.handle, Reason.KV_CAPACITY_EXCEEDED, "the worker is smaller now"))
    finished = await rig.caller.event(call, "finished")
    assert (finished.reason, finished.failure.reason) == (pb.FINISH_REASON_ERROR, "KV_CAPACITY_EXCEEDED")
    assert (await rig.caller.error(call)).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_thousand_messages_at_once_all_arrive(rig: Any, spell: Spell) -> None:
    """The socket's descriptor is edge-triggered: what is not drained at the wake would wait for the next message."""
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    token = spell("x")[0]
    for offset in range(1000):
        rig.scheduler.tokens(submit.handle, offset, token)
    rig.scheduler.finish(submit.handle, 1000, FinishReason.EOS)
    events = await rig.caller.events(call)
    assert sum(event.delta.num_tokens for event in events) == 1000


async def test_answers_are_noticed_while_the_gateway_sends(rig: Any) -> None:
    """A send may swallow the wake for what arrived meanwhile."""

    async def answer() -> None:
        for _ in range(200):
            cancel = await rig.scheduler.next(front.Cancel)
            rig.scheduler.send(front.CancelReply(cancel.query, 1))

    answering = asyncio.create_task(answer())
    calls = [rig.stub.Cancel(pb.CancelRequest(request_id=f"r{i}")) for i in range(200)]
    for call in calls:
        assert (await call).outcome == pb.CANCEL_OUTCOME_WAS_WAITING
    await answering


async def test_an_end_that_counts_more_tokens_than_came_makes_the_link_start_anew(rig: Any, spell: Spell) -> None:
    call, submit = await _begin(rig, spell, "a")
    rig.scheduler.finish(submit.handle, 3)
    again = await rig.scheduler.accept()
    assert list(unpack_u32(again.emitted[0])) == spell("a")
    rig.scheduler.tokens(again.handle, 1, *spell("bc"))
    rig.scheduler.finish(again.handle, 3)
    events = await rig.caller.events(call)
    assert (events[0].delta.text, events[1].finished.usage.output_tokens) == ("bc", 3)


async def test_a_request_that_no_attempt_brings_to_its_end_fails(
    rig: Any, spell: Spell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.streams.generation_table._MAX_ATTEMPTS", 3)
    call = rig.stub.Generate(_request())
    for _ in range(3):
        submit = await rig.scheduler.accept()
        rig.scheduler.tokens(submit.handle, 9, *spell("z"))
    assert (await rig.caller.event(call, "accepted")).request_id
    assert (await rig.caller.event(call, "finished")).failure.reason == "INTERNAL"
    assert (await rig.caller.error(call)).code is grpc.StatusCode.INTERNAL
