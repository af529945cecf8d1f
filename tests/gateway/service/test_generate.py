"""Generate over a real server: what a client sees of what the scheduler says."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import pack_f32, pack_u32, pack_u64, unpack_u32
from chairlift.v1 import inference_pb2 as pb

Spell = Callable[[str], list[int]]
WAIT_S = 20.0


def _request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "hi"} | fields))


async def test_a_stream_from_accepted_to_finished(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(request_id="r1", output=pb.Output(token_ids=True)))
    submit = await rig.scheduler.accept(number=42, queue_position=3, predicted_ttft_ns=5_000_000)
    assert list(unpack_u32(submit.prompt)) == spell("hi")
    assert (submit.request_id, submit.tenant, submit.attempt, submit.n) == ("r1", "default", 1, 1)
    accepted = await rig.caller.event(call, "accepted")
    assert (accepted.request_id, accepted.model, accepted.prompt_tokens) == ("r1", "test", 2)
    assert (accepted.queue_position, accepted.predicted_ttft_ms, accepted.resumed) == (3, 5.0, False)
    assert accepted.stream_token
    first, second = spell("ab")
    rig.scheduler.tokens(submit.handle, 0, first)
    delta = await rig.caller.event(call, "delta")
    # The first delta is here before the last token is made.
    assert (delta.index, delta.offset, delta.num_tokens, delta.text) == (0, 0, 1, "a")
    assert list(delta.token_ids) == [first]
    rig.scheduler.tokens(submit.handle, 1, second)
    assert (await rig.caller.event(call, "delta")).text == "b"
    rig.scheduler.finish(
        submit.handle, 2, cached_tokens=1, queue_ns=2_000_000, ttft_ns=3_000_000, total_ns=9_000_000, preemptions=2
    )
    finished = await rig.caller.event(call, "finished")
    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens, finished.usage.output_tokens) == (2, 1, 2)
    assert (finished.timing.queue_ms, finished.timing.ttft_ms, finished.timing.total_ms) == (2.0, 3.0, 9.0)
    assert finished.timing.itl_max_ms >= finished.timing.itl_p50_ms > 0
    assert (finished.preemptions, finished.seed) == (2, submit.sampling.seed)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    trailing = dict(await call.trailing_metadata())
    assert (trailing["x-request-id"], trailing["chairlift-replica"]) == ("r1", "replica-0")
    assert rig.scheduler.heard(front.Detach) == []


async def test_code_points_leave_whole(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    for offset, token in enumerate(spell("é😀")):
        rig.scheduler.tokens(submit.handle, offset, token)
    rig.scheduler.tokens(submit.handle, 6, spell("é")[0])
    rig.scheduler.finish(submit.handle, 7)
    events = await rig.caller.events(call)
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert "".join(delta.text for delta in deltas) == "é😀\ufffd"
    assert [delta.offset for delta in deltas] == [sum(d.num_tokens for d in deltas[:i]) for i in range(len(deltas))]
    assert sum(delta.num_tokens for delta in deltas) == 7


async def test_tokens_that_come_together_leave_in_one_message(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("hello"))
    rig.scheduler.finish(submit.handle, 5)
    events = await rig.caller.events(call)
    assert [event.WhichOneof("event") for event in events] == ["accepted", "delta", "finished"]
    assert events[1].delta.text == "hello"


async def test_a_stop_string_over_token_borders(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(stopping=pb.Stopping(stop=["\nEND"]), output=pb.Output(token_ids=True)))
    submit = await rig.scheduler.accept()
    ids = spell("one\ntwo\nEND")
    for offset, token in enumerate(ids):
        rig.scheduler.tokens(submit.handle, offset, token)
    stopped = await rig.scheduler.next(front.Stopped)
    assert (stopped.handle, stopped.num_tokens) == (submit.handle, len(ids))
    # What was sampled before the scheduler heard of it does not count.
    rig.scheduler.tokens(submit.handle, len(ids), *spell(" more"))
    rig.scheduler.finish(submit.handle, len(ids), FinishReason.STOP_STRING)
    events = await rig.caller.events(call)
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert "".join(delta.text for delta in deltas) == "one\ntwo"
    assert [token for delta in deltas for token in delta.token_ids] == ids
    finished = events[-1].finished
    assert (finished.reason, finished.stop.text) == (pb.FINISH_REASON_STOP_STRING, "\nEND")
    assert finished.usage.output_tokens == len(ids)


async def test_a_stop_string_found_in_the_last_token_stands(rig: Any, spell: Spell) -> None:
    """The scheduler ended the choice by length at the same token; the gateway's match goes before it."""
    call = rig.stub.Generate(_request(stopping=pb.Stopping(stop=["b"], include_stop=True, max_tokens=3)))
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("abc"))
    rig.scheduler.finish(submit.handle, 3)
    events = await rig.caller.events(call)
    assert events[1].delta.text == "ab"
    assert events[-1].finished.reason == pb.FINISH_REASON_STOP_STRING
    assert events[-1].finished.usage.output_tokens == 2


async def test_stop_tokens_have_no_text_unless_wanted(rig: Any, spell: Spell) -> None:
    token = spell("!")[0]
    for include, text in ((False, "a"), (True, "a!")):
        call = rig.stub.Generate(_request(stopping=pb.Stopping(stop_token_ids=[token], include_stop=include)))
        submit = await rig.scheduler.accept()
        rig.scheduler.tokens(submit.handle, 0, *spell("a!"))
        rig.scheduler.finish(submit.handle, 2, FinishReason.STOP_TOKEN, stop_token_id=token)
        events = await rig.caller.events(call)
        assert events[1].delta.text == text
        assert events[1].delta.num_tokens == 2
        assert events[-1].finished.stop.token_id == token


async def test_before_min_tokens_stop_strings_are_text(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(stopping=pb.Stopping(stop=["a"], min_tokens=3)))
    submit = await rig.scheduler.accept()
    assert submit.sampling.min_tokens == 3
    rig.scheduler.tokens(submit.handle, 0, *spell("aba"))
    assert (await rig.scheduler.next(front.Stopped)).num_tokens == 3
    rig.scheduler.finish(submit.handle, 3, FinishReason.STOP_STRING)
    assert (await rig.caller.events(call))[1].delta.text == "ab"


async def test_each_choice_has_its_own_output_and_end(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(sampling=pb.Sampling(n=3, seed=9), stopping=pb.Stopping(stop=["z"])))
    submit = await rig.scheduler.accept()
    assert (submit.n, submit.sampling.seed) == (3, 9)
    handles = [submit.handle + index for index in range(3)]
    columns = front.Deltas(pack_u64(handles), pack_u32([0, 0, 0]), pack_u32([*spell("abz")]))
    rig.scheduler.send(columns)
    assert (await rig.scheduler.next(front.Stopped)).handle == handles[2]
    rig.scheduler.finish(handles[2], 1, FinishReason.STOP_STRING, request_ended=False)
    rig.scheduler.tokens(handles[0], 1, *spell("c"))
    rig.scheduler.finish(handles[0], 2, request_ended=False)
    rig.scheduler.finish(handles[1], 1, FinishReason.EOS, stop_token_id=258)
    events = await rig.caller.events(call)
    texts = dict.fromkeys(range(3), "")
    for event in events:
        if event.HasField("delta"):
            texts[event.delta.index] += event.delta.text
    assert texts == {0: "ac", 1: "b", 2: ""}
    ends = {event.finished.index: event.finished for event in events if event.HasField("finished")}
    assert {index: end.reason for index, end in ends.items()} == {
        0: pb.FINISH_REASON_LENGTH,
        1: pb.FINISH_REASON_EOS,
        2: pb.FINISH_REASON_STOP_STRING,
    }
    assert all(end.seed == 9 for end in ends.values())


async def test_log_probabilities_go_with_their_tokens(rig: Any, spell: Spell) -> None:
    call = rig.stub.Generate(_request(text="the", output=pb.Output(logprobs=1, prompt_logprobs=0)))
    submit = await rig.scheduler.accept()
    assert (submit.sampling.logprobs, submit.sampling.prompt_logprobs) == (1, 0)
    first, second = spell("é")
    part = front.DeltaPromptLogprobs(submit.handle, 1, 1, pack_u32([7]), pack_f32([-0.5]))
    entries = [
        front.DeltaLogprobs(submit.handle, offset, pack_u32([token, 5]), pack_f32([-1.0, -0.25]))
        for offset, token in enumerate((first, second))
    ]
    rig.scheduler.tokens(submit.handle, 0, first, logprobs=(entries[0],), prompt_logprobs=(part,))
    rig.scheduler.tokens(submit.handle, 1, second, logprobs=(entries[1],))
    rig.scheduler.finish(submit.handle, 2)
    events = await rig.caller.events(call)
    assert [event.WhichOneof("event") for event in events] == [
        "accepted",
        "prompt_logprobs",
        "prompt_logprobs",
        "delta",
        "finished",
    ]
    start, later = events[1].prompt_logprobs, events[2].prompt_logprobs
    assert (start.offset, start.logprobs[0].piece, start.logprobs[0].HasField("logprob")) == (0, b"the", False)
    assert (later.offset, later.logprobs[0].token_id, later.logprobs[0].logprob) == (1, 7, -0.5)
    delta = events[3].delta
    assert (delta.num_tokens, delta.text) == (2, "é")
    assert [entry.token_id for entry in delta.logprobs] == [first, second]
    assert [entry.piece for entry in delta.logprobs] == [b"\xc3", b"\xa9"]
    assert (delta.logprobs[0].top[0].token_id, delta.logprobs[0].top[0].logprob) == (5, -0.25)


async def test_long_prompt_log_probabilities_come_in_parts(rig: Any) -> None:
    call = rig.stub.Generate(_request(output=pb.Output(prompt_logprobs=1)))
    submit = await rig.scheduler.accept()
    part = front.DeltaPromptLogprobs(submit.handle, 1, 2, pack_u32([3, 4] * 600), pack_f32([-1.0, -2.0] * 600))
    rig.scheduler.send(front.Deltas(b"", b"", b"", prompt_logprobs=(part,)))
    rig.scheduler.finish(submit.handle, 0)
    events = [event.prompt_logprobs for event in await rig.caller.events(call) if event.HasField("prompt_logprobs")]
    assert [(event.offset, len(event.logprobs)) for event in events] == [(0, 1), (1, 256), (257, 256), (513, 88)]
    assert events[1].logprobs[0].top[0].token_id == 4


async def test_chat_messages_go_through_the_template(chat_rig: Any, spell: Spell) -> None:
    parts = [pb.ContentPart(text="a<|e"), pb.ContentPart(text="nd|>b")]
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=parts)])
    call = chat_rig.stub.Generate(pb.GenerateRequest(messages=messages))
    submit = await chat_rig.scheduler.accept()
    start, end = 257, 258
    assert list(unpack_u32(submit.prompt)) == [
        start,
        *spell("user\na<|end|>b"),
        end,
        start,
        *spell("assistant\n"),
    ]
    chat_rig.scheduler.tokens(submit.handle, 0, end)
    chat_rig.scheduler.finish(submit.handle, 1, FinishReason.EOS, stop_token_id=end)
    events = await chat_rig.caller.events(call)
    assert (events[1].delta.text, events[1].delta.num_tokens) == ("", 1)


async def test_what_is_submitted_is_what_was_asked_for(rig: Any) -> None:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[1, 2, 3]),
        sampling=pb.Sampling(
            temperature=0.5,
            top_p=0.25,
            top_k=1000,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=-1,
            frequency_penalty=2,
            logit_bias={9: -100, 4: 1.5},
            seed=2**64 - 1,
        ),
        stopping=pb.Stopping(max_tokens=7, min_tokens=2, stop_token_ids=[5, 5, 6], ignore_eos=True),
        scheduling=pb.Scheduling(priority=500, queue_timeout=Duration(seconds=2), itl_slo=Duration(nanos=5)),
        delivery=pb.Delivery(detach_grace=Duration(seconds=10_000)),
        cache_salt="salt",
    )
    call = rig.stub.Generate(request, timeout=60, metadata=(("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),))
    submit = await rig.scheduler.next(front.Submit)
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 260, 0.125)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, -1, 2)
    assert sampling.logit_bias == ((4, 1.5), (9, -100.0))
    assert (sampling.seed, sampling.min_tokens, sampling.stop_token_ids) == (2**64 - 1, 2, (5, 6))
    assert (sampling.ignore_eos, submit.max_tokens, submit.cache_salt) == (True, 7, "salt")
    assert (submit.priority, submit.queue_timeout_in_ns, submit.ttft_slo_ns, submit.itl_slo_ns) == (
        100,
        2 * 10**9,
        None,
        5,
    )
    assert submit.detach_grace_ns == 300 * 10**9
    assert submit.traceparent == f"00-{'1' * 32}-{'2' * 16}-01"
    assert submit.deadline_in_ns is not None
    # On the wire a time-out is rounded up, by as much as a hundredth.
    assert 58 * 10**9 < submit.deadline_in_ns < 61 * 10**9
    call.cancel()


async def test_without_a_deadline_the_servers_bound_holds(start_rig: Any) -> None:
    async with start_rig(max_request_duration_s=50.0) as rig:
        call = rig.stub.Generate(_request())
        submit = await rig.scheduler.next(front.Submit)
        assert 49 * 10**9 < submit.deadline_in_ns <= 50 * 10**9
        assert 0 <= submit.sampling.seed < 2**53
        call.cancel()


async def test_default_max_tokens_bounds_only_what_has_room(start_rig: Any) -> None:
    async with start_rig(default_max_tokens=100) as rig:
        for prompt, expected in ((10, 100), (100, None)):
            call = rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * prompt)))
            assert (await rig.scheduler.next(front.Submit)).max_tokens == expected
            call.cancel()


async def test_a_clients_cancel_reaches_the_scheduler_at_once(rig: Any) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    await rig.caller.event(call, "accepted")
    call.cancel()
    assert (await rig.scheduler.next(front.Detach)).handle == submit.handle
    await rig.until(lambda: rig.service._table.num_open == 0)


async def test_a_cancel_before_the_answer_reaches_the_scheduler(rig: Any) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.next(front.Submit)
    call.cancel()
    assert (await rig.scheduler.next(front.Detach)).handle == submit.handle


async def test_a_deadline_that_the_scheduler_ends_has_its_details(rig: Any) -> None:
    call = rig.stub.Generate(_request(), timeout=WAIT_S)
    submit = await rig.scheduler.accept()
    rig.scheduler.finish(
        submit.handle, 0, FinishReason.DEADLINE, failure_reason=Reason.QUEUE_TIMEOUT, failure_message="too long"
    )
    events, finished = await rig.caller.event(call, "accepted"), await rig.caller.event(call, "finished")
    assert events.request_id
    assert (finished.reason, finished.failure.reason) == (pb.FINISH_REASON_DEADLINE, "QUEUE_TIMEOUT")
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "QUEUE_TIMEOUT")


async def test_a_clients_deadline_detaches(rig: Any) -> None:
    call = rig.stub.Generate(_request(), timeout=0.3)
    submit = await rig.scheduler.accept()
    error = await rig.caller.error(call)
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await rig.scheduler.next(front.Detach)).handle == submit.handle


@pytest.mark.parametrize(
    ("reason", "failure", "code"),
    [
        (FinishReason.CANCELLED, Reason.CANCELLED, grpc.StatusCode.CANCELLED),
        (FinishReason.ERROR, Reason.STEP_FAILED, grpc.StatusCode.INTERNAL),
        (FinishReason.ERROR, Reason.NO_WORKER, grpc.StatusCode.UNAVAILABLE),
        (FinishReason.ERROR, "A_NEWER_REASON", grpc.StatusCode.INTERNAL),
    ],
)
async def test_a_failed_choice_decides_the_status(rig: Any, spell: Spell, reason: Any, failure: str, code: Any) -> None:
    call = rig.stub.Generate(_request(sampling=pb.Sampling(n=2)))
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("ok"))
    rig.scheduler.finish(submit.handle, 2, request_ended=False)
    rig.scheduler.finish(submit.handle + 1, 0, reason, failure_reason=failure, failure_message="no luck")
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason, error.message) == (code, failure, "no luck")


async def test_a_refusal_has_no_events(rig: Any) -> None:
    call = rig.stub.Generate(_request(request_id="full"))
    submit = await rig.scheduler.next(front.Submit)
    rig.scheduler.send(
        front.Refused(
            submit.handle,
            Reason.QUEUE_FULL,
            "100 requests wait already",
            limits=(("max_num_queued_reqs", "100"),),
            retry_after_ns=1_500_000_000,
        )
    )
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert error.info.metadata["max_num_queued_reqs"] == "100"
    assert error.retry.retry_delay.ToMilliseconds() == 1500
    assert error.trailing["grpc-retry-pushback-ms"] == "1500"
    assert error.quota.violations[0].subject == "max_num_queued_reqs"
    assert error.trailing["x-request-id"] == "full"
    assert rig.scheduler.heard(front.Detach) == []


async def test_a_refusal_names_the_field_that_the_client_set(rig: Any) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.next(front.Submit)
    rig.scheduler.send(front.Refused(submit.handle, Reason.KV_CAPACITY_EXCEEDED, "too long", "input"))
    error = await rig.caller.error(call)
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["text"])


async def test_a_newer_attachment_ends_this_one(rig: Any) -> None:
    call = rig.stub.Generate(_request())
    submit = await rig.scheduler.accept()
    rig.scheduler.send(front.Superseded(submit.handle))
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    assert rig.scheduler.heard(front.Detach) == []


async def test_the_same_id_with_the_same_fields_attaches(rig: Any, spell: Spell) -> None:
    first = rig.stub.Generate(_request(request_id="same", sampling=pb.Sampling(temperature=0.5)))
    one = await rig.scheduler.next(front.Submit)
    second = rig.stub.Generate(_request(request_id="same", sampling=pb.Sampling(temperature=0.5)))
    two = await rig.scheduler.next(front.Submit)
    third = rig.stub.Generate(_request(request_id="same", sampling=pb.Sampling(temperature=0.75)))
    three = await rig.scheduler.next(front.Submit)
    assert one.digest == two.digest != three.digest
    assert len(one.digest) == 16
    rig.scheduler.send(front.Attached(two.handle, 1, 2, 1, 77, (pack_u32(spell("so far")),), one.gateway_state))
    accepted = await rig.caller.event(second, "accepted")
    assert accepted.resumed
    delta = await rig.caller.event(second, "delta")
    assert (delta.offset, delta.text) == (0, "so far")
    rig.scheduler.tokens(two.handle, 6, *spell("!"))
    rig.scheduler.finish(two.handle, 7)
    assert (await rig.caller.event(second, "delta")).text == "!"
    # The seed is that of the living request, which chose its own.
    assert (await rig.caller.event(second, "finished")).seed == 77
    for call in (first, third):
        call.cancel()


async def test_many_streams_at_once_get_their_own(rig: Any, spell: Spell) -> None:
    calls = [rig.stub.Generate(_request(request_id=f"r{i}")) for i in range(50)]
    submits = {}
    for _ in calls:
        submit = await rig.scheduler.accept()
        submits[submit.request_id] = submit.handle
    for step in range(10):
        handles = [submits[f"r{i}"] for i in range(50)]
        ids = [spell(chr(ord("a") + (i + step) % 26))[0] for i in range(50)]
        rig.scheduler.send(front.Deltas(pack_u64(handles), pack_u32([step] * 50), pack_u32(ids)))
    for handle in submits.values():
        rig.scheduler.finish(handle, 10)
    streams = await asyncio.gather(*(rig.caller.events(call) for call in calls))
    for i, events in enumerate(streams):
        text = "".join(event.delta.text for event in events if event.HasField("delta"))
        assert text == "".join(chr(ord("a") + (i + step) % 26) for step in range(10))
    await rig.until(lambda: rig.service._table.num_open == 0)
    assert not rig.service._table._choices
    assert not rig.service._table._attachments


async def test_open_generations_are_in_order_of_arrival_and_leave_once(rig: Any) -> None:
    table = rig.service._table
    calls, submits = [], []
    for _ in range(3):
        calls.append(rig.stub.Generate(pb.GenerateRequest(text="hi")))
        submits.append(await rig.scheduler.accept())
    served = [table._attachments[submit.handle] for submit in submits]
    assert [generation.serial for generation in served] == [1, 2, 3]
    table.release(served[1])
    table.release(served[1])
    assert list(table._served.values()) == [served[0], served[2]]
    for call in calls:
        call.cancel()
