"""Health, reflection, drain, and clients that do not read."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome
from chairlift.ipc.tokens import pack_u32, pack_u64
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc
from chairlift.v1 import ops_pb2

Spell = Callable[[str], list[int]]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
INFERENCE = "chairlift.v1.InferenceService"
_OWN_CONNECTION = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def _request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "hi"} | fields))


async def test_health_tells_live_and_ready_on_both_ports(rig: Any) -> None:
    for channel in (rig.caller.channel, rig.caller.ops_channel):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", INFERENCE):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
    stub = health_pb2_grpc.HealthStub(rig.caller.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
    assert (await watch.read()).status == SERVING
    rig.scheduler.ready = False
    rig.scheduler.draining = True
    rig.scheduler.announce()
    assert (await watch.read()).status == NOT_SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
    rig.scheduler.ready, rig.scheduler.draining = True, False
    rig.scheduler.announce()
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_reflection_names_the_services_of_each_port(rig: Any) -> None:
    for channel, service in ((rig.caller.channel, INFERENCE), (rig.caller.ops_channel, "chairlift.v1.OpsService")):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {each.name for each in (await call.read()).list_services_response.service}
        assert listed == {service, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        call.cancel()


async def test_reflection_can_be_switched_off(start_rig: Any) -> None:
    async with start_rig(reflection=False) as rig:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(rig.caller.channel)
        call = stub.ServerReflectionInfo()
        # Nothing is written: the answer does not wait for it, and a write after it would fail.
        assert (await rig.caller.error(call)).code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_drain_lets_streams_end_and_takes_no_new_ones(rig: Any, spell: Spell) -> None:
    """smg#1172: SIGTERM kills what is in flight."""
    stub: Any = health_pb2_grpc.HealthStub(rig.caller.ops_channel)
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    await rig.caller.event(call, "accepted")
    rig.stop.request()
    await rig.until(lambda: rig.service.state.ready() == (False, "draining"))
    while (await stub.Check(health_pb2.HealthCheckRequest(service=INFERENCE))).status != NOT_SERVING:
        pass
    # Who comes late is told so, also over a connection of its own; who asks about a request in flight is served.
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.service.port}", options=_OWN_CONNECTION) as channel:
        stub_of_latecomer: Any = pb_grpc.InferenceServiceStub(channel)
        late = await rig.caller.error(stub_of_latecomer.Generate(_request()))
        assert (late.code, late.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert late.retry.HasField("retry_delay")
        cancel = stub_of_latecomer.Cancel(pb.CancelRequest(request_id="r"))
        query = await rig.scheduler.next(front.Cancel)
        rig.scheduler.send(front.CancelReply(query.query, CancelOutcome.ALREADY_ENDED))
        assert (await cancel).outcome == pb.CANCEL_OUTCOME_ALREADY_ENDED
        resume = stub_of_latecomer.Resume(pb.ResumeRequest(request_id="r"))
        attach = await rig.scheduler.next(front.Attach)
        rig.scheduler.send(front.Refused(attach.handle, "UNKNOWN_REQUEST", "no such request"))
        assert (await rig.caller.error(resume)).code is grpc.StatusCode.NOT_FOUND
    for offset, token in enumerate(spell("the end")):
        rig.scheduler.tokens(submit.handle, offset, token)
    rig.scheduler.finish(submit.handle, 7)
    events = await rig.caller.events(call)
    assert "".join(event.delta.text for event in events if event.HasField("delta")) == "the end"
    assert await call.code() is grpc.StatusCode.OK
    await rig.running


async def test_what_is_left_after_the_drain_ends_with_unavailable_and_is_not_cancelled(
    start_rig: Any, spell: Spell
) -> None:
    async with start_rig(drain_timeout_s=0.3) as rig:
        call = rig.stub.Generate(_request())
        submit = await rig.scheduler.accept()
        rig.scheduler.tokens(submit.handle, 0, *spell("a"))
        rig.stop.request()
        error = await rig.caller.error(call)
        assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert error.retry.HasField("retry_delay")
        await rig.running
        await rig.service.close()
        # The goodbye makes the scheduler keep the request for whoever resumes it.
        await rig.scheduler.next(front.GatewayBye)
        assert rig.scheduler.heard(front.Detach) == []


async def test_a_drain_by_the_operator_ends_streams_at_its_deadline(rig: Any) -> None:
    call = rig.stub.Generate(_request())
    await rig.scheduler.accept()
    request = ops_pb2.DrainRequest(gateway_id=rig.scheduler.hellos[0].gateway_id)
    request.deadline.FromMilliseconds(200)
    await rig.ops.Drain(request)
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert (await rig.ops.GetLoad(ops_pb2.GetLoadRequest())).replicas, "the operator is still answered"


async def _flood_more(rig: Any, handle: int, spell: Spell, start: int) -> None:
    """200 tokens with 2,000 bytes of log-probabilities each, faster than they are read."""
    token = spell("x")[0]
    columns = pack_u32([token] * 250), pack_u32([0] * 250)
    for offset in range(start, start + 200):
        entry = front.DeltaLogprobs(handle, offset, *columns)
        rig.scheduler.send(front.Deltas(pack_u64([handle]), pack_u32([offset]), pack_u32([token]), logprobs=(entry,)))
    await asyncio.sleep(0.02)


async def _flood_until_stuck(rig: Any, output: Any, handle: int, spell: Spell) -> int:
    """Sends until what was taken for the client has not left for a while; returns the number of tokens."""
    num_tokens, taken_at, rounds = 0, 0.0, 0
    while rounds < 10:
        await _flood_more(rig, handle, spell, num_tokens)
        num_tokens += 200
        rounds = rounds + 1 if output.is_being_written and output.taken_at == taken_at else 0
        taken_at = output.taken_at
    return num_tokens


@pytest.mark.parametrize(
    ("queue_tokens", "timeout_s"),
    [(10, 60.0), (10, 0.5), (1_000_000, 0.5)],
    ids=["far too much waits", "too much waits for too long", "the end is not read"],
)
async def test_a_client_that_does_not_read_is_cut_and_its_neighbours_are_not(
    start_rig: Any, spell: Spell, queue_tokens: int, timeout_s: float
) -> None:
    async with start_rig(stream_queue_tokens=queue_tokens, slow_client_timeout_s=timeout_s) as rig:
        frozen = rig.stub.Generate(_request(output=pb.Output(logprobs=20)))
        submit = await rig.scheduler.accept()
        await rig.caller.event(frozen, "accepted")
        neighbour = rig.stub.Generate(_request())
        other = await rig.scheduler.accept()
        output = rig.service._table._attachments[submit.handle].output
        num_tokens = await _flood_until_stuck(rig, output, submit.handle, spell)
        if queue_tokens > num_tokens:
            rig.scheduler.finish(submit.handle, num_tokens)
        await rig.until(lambda: rig.service._table.num_cut == 1)
        assert "chairlift_gateway_streams_cut_total 1.0" in rig.service._observer.exposition()
        if queue_tokens < num_tokens:
            assert (await rig.scheduler.next(front.Detach)).handle == submit.handle
        rig.scheduler.tokens(other.handle, 0, *spell("fine"))
        rig.scheduler.finish(other.handle, 4)
        assert (await rig.caller.events(neighbour))[1].delta.text == "fine"
        # Once it reads again, it gets what was on its way, and then why there is no more.
        error = await rig.caller.error(frozen)
        assert (error.code, error.info.reason) == (grpc.StatusCode.ABORTED, "SLOW_CLIENT")
        assert rig.service._table.num_open == 0


async def test_a_slow_reader_gets_its_tokens_together(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(output=pb.Output(logprobs=20)))
    submit = await rig.scheduler.accept()
    output = rig.service._table._attachments[submit.handle].output
    num_tokens = 0
    while not (output.is_being_written and output.num_waiting):
        await _flood_more(rig, submit.handle, spell, num_tokens)
        num_tokens += 200
    rig.scheduler.finish(submit.handle, num_tokens)
    events = await rig.caller.events(call)
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert sum(delta.num_tokens for delta in deltas) == num_tokens
    assert len(deltas) < num_tokens
    assert [delta.offset for delta in deltas] == [sum(d.num_tokens for d in deltas[:i]) for i in range(len(deltas))]
    assert all(len(delta.logprobs) == delta.num_tokens for delta in deltas)


async def test_a_full_gateway_refuses_every_kind_of_call_but_cancel(start_rig: Any) -> None:
    async with start_rig(max_concurrent_streams=1) as rig:
        waiting = rig.stub.Explain(pb.ExplainRequest(request_id="r"))
        query = await rig.scheduler.next(front.ExplainQuery)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.service.port}", options=_OWN_CONNECTION) as channel:
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            for call in (stub.Tokenize(pb.TokenizeRequest(text="a")), stub.Resume(pb.ResumeRequest(request_id="r"))):
                error = await rig.caller.error(call)
                assert (error.code, error.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")
            cancel = stub.Cancel(pb.CancelRequest(request_id="r"))
            asked = await rig.scheduler.next(front.Cancel)
            rig.scheduler.send(front.CancelReply(asked.query, CancelOutcome.WAS_WAITING))
            assert (await cancel).outcome == pb.CANCEL_OUTCOME_WAS_WAITING
        rig.scheduler.send(front.QueryFailed(query.query, "UNKNOWN_REQUEST", ""))
        assert (await rig.caller.error(waiting)).code is grpc.StatusCode.NOT_FOUND
