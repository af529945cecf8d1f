"""Several replicas: where a request goes, where it is looked for, where it goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import msgspec
import pytest_asyncio

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome, FinishReason, Reason
from chairlift.ipc.tokens import pack_u32, unpack_u32
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import ops_pb2
from gateway.streams.request_state import RequestState, encode_state

Spell = Callable[[str], list[int]]


class Pair:
    """A gateway with two schedulers."""

    def __init__(self, rig: Any, other: Any) -> None:
        self.rig = rig
        self.schedulers = [rig.scheduler, other]

    async def next(self, kind: type) -> tuple[Any, Any]:
        """The next message of that kind at either, and the one that got it."""
        tasks = [asyncio.create_task(scheduler.next(kind)) for scheduler in self.schedulers]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        index = tasks.index(next(iter(done)))
        return self.schedulers[index], tasks[index].result()

    def other(self, scheduler: Any) -> Any:
        return self.schedulers[1 - self.schedulers.index(scheduler)]


@pytest_asyncio.fixture
async def pair(start_rig: Callable[..., Any], settings: Any, tmp_path: Any) -> AsyncIterator[Pair]:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    endpoints = (f"ipc://{run}/gateway.sock", f"ipc://{run}/second.sock")
    async with start_rig(replicas=endpoints) as rig:
        other = type(rig.scheduler)(endpoints[1], settings.ipc, rig.scheduler.model, epoch=70)
        other.replica_id = "replica-1"
        await other.start()
        await other.wait_for_gateway()
        await rig.until(lambda: all(link.is_attached for link in rig.service._replicas.links))
        yield Pair(rig, other)
        await other.stop()


async def test_a_request_has_its_place_and_all_places_are_used(pair: Pair) -> None:
    places: dict[str, list[str]] = {}
    for _ in range(2):
        for number in range(24):
            call = pair.rig.stub.Generate(pb.GenerateRequest(text="x", request_id=f"r{number}"))
            scheduler, submit = await pair.next(front.Submit)
            places.setdefault(submit.request_id, []).append(scheduler.replica_id)
            call.cancel()
            await scheduler.next(front.Detach)
    assert all(first == second for first, second in places.values())
    assert {first for first, _ in places.values()} == {"replica-0", "replica-1"}


async def test_a_lost_replicas_requests_go_on_at_the_other(pair: Pair, spell: Spell) -> None:
    call = pair.rig.stub.Generate(pb.GenerateRequest(text="x"))
    scheduler, submit = await pair.next(front.Submit)
    scheduler.send(front.Accepted(submit.handle, 1, 0))
    scheduler.tokens(submit.handle, 0, *spell("a"))
    assert (await pair.rig.caller.event(call, "accepted")).request_id
    assert (await pair.rig.caller.event(call, "delta")).text == "a"
    await scheduler.stop()
    other = pair.other(scheduler)
    again = await other.accept()
    assert list(unpack_u32(again.emitted[0])) == spell("a")
    other.tokens(again.handle, 1, *spell("b"))
    other.finish(again.handle, 2)
    events = await pair.rig.caller.events(call)
    assert events[0].delta.text == "b"
    assert dict(await call.trailing_metadata())["chairlift-replica"] == other.replica_id
    await scheduler.start_again()


async def test_a_drained_replicas_requests_go_on_at_the_other(pair: Pair, spell: Spell) -> None:
    """Its time is up before theirs: they end there, and their streams do not notice."""
    call = pair.rig.stub.Generate(pb.GenerateRequest(text="x", sampling=pb.Sampling(n=2)))
    scheduler, submit = await pair.next(front.Submit)
    scheduler.send(front.Accepted(submit.handle, 1, 0))
    scheduler.tokens(submit.handle, 0, *spell("a"))
    assert (await pair.rig.caller.event(call, "accepted")).request_id
    assert (await pair.rig.caller.event(call, "delta")).text == "a"
    scheduler.draining = True
    scheduler.announce()
    other = pair.other(scheduler)
    for choice in range(2):
        scheduler.finish(submit.handle + choice, 1 - choice, FinishReason.ERROR, failure_reason=Reason.DRAINING)
    again = await other.accept()
    assert [list(unpack_u32(one)) for one in again.emitted] == [spell("a"), []]
    other.tokens(again.handle, 1, *spell("b"))
    other.tokens(again.handle + 1, 0, *spell("c"))
    other.finish(again.handle, 2)
    other.finish(again.handle + 1, 1)
    events = await pair.rig.caller.events(call)
    assert {event.delta.text for event in events if event.HasField("delta")} == {"b", "c"}
    assert (await call.code()).name == "OK"


async def test_a_draining_replica_takes_nothing_new(pair: Pair) -> None:
    drained = pair.schedulers[0]
    drained.draining = True
    drained.announce()
    await pair.rig.until(lambda: pair.rig.service._replicas.links[0].is_draining)
    for number in range(10):
        call = pair.rig.stub.Generate(pb.GenerateRequest(text="x", request_id=f"r{number}"))
        await pair.schedulers[1].next(front.Submit)
        call.cancel()
    assert drained.heard(front.Submit) == []


async def test_resume_looks_where_the_request_may_be(pair: Pair, spell: Spell) -> None:
    call = pair.rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    first, attach = await pair.next(front.Attach)
    first.send(front.Refused(attach.handle, Reason.UNKNOWN_REQUEST, "not here"))
    second = pair.other(first)
    attach = await second.next(front.Attach)
    state = encode_state(RequestState("test", 1))
    second.send(front.Attached(attach.handle, 5, 7, 1, 9, (pack_u32(spell("a")),), state))
    second.finish(attach.handle, 1)
    events = await pair.rig.caller.events(call)
    assert [event.WhichOneof("event") for event in events] == ["accepted", "delta", "finished"]


async def test_resume_of_what_nobody_has_is_not_found(pair: Pair) -> None:
    call = pair.rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    for _ in range(2):
        scheduler, attach = await pair.next(front.Attach)
        scheduler.send(front.Refused(attach.handle, Reason.UNKNOWN_REQUEST, "not here"))
    assert (await pair.rig.caller.error(call)).code is grpc.StatusCode.NOT_FOUND


async def test_cancel_reaches_the_one_that_has_it(pair: Pair) -> None:
    call = pair.rig.stub.Cancel(pb.CancelRequest(request_id="r"))
    for scheduler, outcome in zip(pair.schedulers, (CancelOutcome.UNKNOWN, CancelOutcome.WAS_RUNNING), strict=True):
        cancel = await scheduler.next(front.Cancel)
        scheduler.send(front.CancelReply(cancel.query, outcome))
    assert (await call).outcome == pb.CANCEL_OUTCOME_WAS_RUNNING


async def test_explain_asks_on_until_one_knows(pair: Pair) -> None:
    call = pair.rig.stub.Explain(pb.ExplainRequest(request_id="r"))
    first, query = await pair.next(front.ExplainQuery)
    first.send(front.QueryFailed(query.query, Reason.UNKNOWN_REQUEST, "not here"))
    second = pair.other(first)
    query = await second.next(front.ExplainQuery)
    second.send(front.ExplainReply(query.query, "r", "ended", 0, (), 1, 1, 1, 0, 0, 0, 1, 1))
    assert (await call).state == pb.REQUEST_STATE_ENDED


async def test_loads_of_all_replicas_are_told(pair: Pair) -> None:
    pair.schedulers[0].load = front.Load(running=1)
    pair.schedulers[1].load = front.Load(running=2)
    load = await pair.rig.ops.GetLoad(ops_pb2.GetLoadRequest())
    assert {one.replica_id: one.num_running for one in load.replicas} == {"replica-0": 1, "replica-1": 2}
    (one,) = (await pair.rig.ops.GetLoad(ops_pb2.GetLoadRequest(replica_id="replica-1"))).replicas
    assert one.num_running == 2


async def test_limits_follow_what_the_replica_serves(
    start_rig: Callable[..., Any], model_info: front.ModelInfo
) -> None:
    async with start_rig() as rig:
        rig.scheduler.model = msgspec.structs.replace(model_info, vocab_size=100)
        rig.scheduler.announce()
        await rig.until(lambda: rig.service._replicas.model.vocab_size == 100)
        error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[150]))))
        assert error.fields == ["token_ids.ids[0]"]
