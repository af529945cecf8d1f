"""Resume over a real server: a stream that another gateway began."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason, SamplingParams
from chairlift.ipc.tokens import pack_f32, pack_u32, unpack_u32
from chairlift.v1 import inference_pb2 as pb
from gateway.streams.request_state import RequestState, encode_state
from gateway.streams.stream_token import StreamToken, encode_token

Spell = Callable[[str], list[int]]


def _attached(attach: front.Attach, outputs: list[list[int]], state: RequestState, **fields: Any) -> front.Attached:
    packed = tuple(pack_u32(ids) for ids in outputs)
    return front.Attached(attach.handle, 5, 7, len(outputs), 99, packed, encode_state(state), **fields)


async def test_goes_on_after_what_the_client_has(rig: Any, spell: Spell) -> None:
    token = encode_token(StreamToken("replica-0", 7, 5))
    offsets = [pb.ChoiceOffset(index=0, offset=2), pb.ChoiceOffset(index=1, offset=0)]
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r", stream_token=token, offsets=offsets))
    attach = await rig.scheduler.next(front.Attach)
    assert (attach.request_id, attach.tenant, attach.epoch, attach.number) == ("r", "default", 7, 5)
    state = RequestState("test", 1, stop_strings=("STOP",), wants_token_ids=True)
    rig.scheduler.send(_attached(attach, [spell("onéST"), spell("two")], state, queue_position=2))
    accepted = await rig.caller.event(call, "accepted")
    assert (accepted.resumed, accepted.request_id, accepted.prompt_tokens, accepted.queue_position) == (True, "r", 7, 2)
    first = await rig.caller.event(call, "delta")
    # "on" came before the break; "ST" may be the beginning of the stop string.
    assert (first.index, first.offset, first.text, first.num_tokens) == (0, 2, "é", 2)
    assert list(first.token_ids) == spell("é")
    second = await rig.caller.event(call, "delta")
    assert (second.index, second.offset, second.text) == (1, 0, "two")
    rig.scheduler.tokens(attach.handle, 6, *spell("!"))
    third = await rig.caller.event(call, "delta")
    assert (third.index, third.offset, third.text) == (0, 4, "ST!")
    call.cancel()
    assert (await rig.scheduler.next(front.Detach)).handle == attach.handle


async def test_nothing_is_missing_and_nothing_comes_twice_at_any_border(rig: Any, spell: Spell) -> None:
    text = "aé😀 STOx"
    ids = spell(text)
    state = RequestState("test", 1, stop_strings=("STOP",))
    borders = [len(text[:count].encode()) for count in range(len(text) + 1)]
    for border in borders:
        call = rig.stub.Resume(pb.ResumeRequest(request_id="r", offsets=[pb.ChoiceOffset(index=0, offset=border)]))
        attach = await rig.scheduler.next(front.Attach)
        rig.scheduler.send(_attached(attach, [ids], state))
        rig.scheduler.finish(attach.handle, len(ids))
        events = await rig.caller.events(call)
        deltas = [event.delta for event in events if event.HasField("delta")]
        assert "".join(delta.text for delta in deltas).encode() == text.encode()[border:]
        assert [delta.offset for delta in deltas] == [border][: len(deltas)]
        assert events[-1].finished.usage.prompt_tokens == 7
        assert events[-1].finished.seed == 99


@pytest.mark.parametrize("offset", [2, 6, 1000])
async def test_an_offset_that_no_delta_can_have_ended_at_is_out_of_range(rig: Any, spell: Spell, offset: int) -> None:
    offsets = [pb.ChoiceOffset(index=0, offset=offset)]
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r", offsets=offsets))
    attach = await rig.scheduler.next(front.Attach)
    rig.scheduler.send(_attached(attach, [spell("aé")], RequestState("test", 1)))
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason, error.fields) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "OFFSET_NOT_KEPT",
        ["offsets"],
    )
    assert (await rig.scheduler.next(front.Detach)).handle == attach.handle


async def test_a_choice_that_is_not_there_is_out_of_range(rig: Any, spell: Spell) -> None:
    offsets = [pb.ChoiceOffset(index=1, offset=0)]
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r", offsets=offsets))
    attach = await rig.scheduler.next(front.Attach)
    rig.scheduler.send(_attached(attach, [spell("a")], RequestState("test", 1)))
    assert (await rig.caller.error(call)).code is grpc.StatusCode.OUT_OF_RANGE


async def test_a_stop_string_that_the_other_gateway_had_found_is_found_again(rig: Any, spell: Spell) -> None:
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    attach = await rig.scheduler.next(front.Attach)
    rig.scheduler.send(_attached(attach, [spell("abSTOPcd")], RequestState("test", 1, stop_strings=("STOP",))))
    stopped = await rig.scheduler.next(front.Stopped)
    assert (stopped.handle, stopped.num_tokens) == (attach.handle, 6)
    rig.scheduler.finish(attach.handle, 6, FinishReason.STOP_STRING)
    events = await rig.caller.events(call)
    assert events[1].delta.text == "ab"
    assert events[-1].finished.stop.text == "STOP"


async def test_an_ended_request_tells_everything_again(rig: Any, spell: Spell) -> None:
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    attach = await rig.scheduler.next(front.Attach)
    state = RequestState("test", 3, wants_logprobs=True, wants_prompt_logprobs=True)
    entry = front.DeltaLogprobs(attach.handle, 0, pack_u32(spell("a")), pack_f32([-2.0]))
    part = front.DeltaPromptLogprobs(attach.handle, 1, 1, pack_u32([4]), pack_f32([-3.0]))
    rig.scheduler.send(_attached(attach, [spell("a")], state, output_logprobs=((entry,),), prompt_logprobs=(part,)))
    rig.scheduler.finish(attach.handle, 1)
    events = await rig.caller.events(call)
    assert [event.WhichOneof("event") for event in events] == [
        "accepted",
        "prompt_logprobs",
        "prompt_logprobs",
        "delta",
        "finished",
    ]
    assert events[1].prompt_logprobs.logprobs[0].token_id == 3
    assert events[3].delta.logprobs[0].logprob == -2.0


async def test_an_unknown_request_is_not_found(rig: Any) -> None:
    call = rig.stub.Resume(pb.ResumeRequest(request_id="gone"))
    attach = await rig.scheduler.next(front.Attach)
    rig.scheduler.send(front.Refused(attach.handle, Reason.UNKNOWN_REQUEST, "no such request lives here", "request_id"))
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST")
    assert rig.scheduler.heard(front.Detach) == []


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": "r", "stream_token": "%%%"}, "stream_token"),
        ({"request_id": "r", "offsets": [pb.ChoiceOffset(index=1)] * 2}, "offsets[1].index"),
        ({"request_id": "r", "offsets": [pb.ChoiceOffset(index=i) for i in range(300)]}, "offsets"),
    ],
)
async def test_a_bad_resume_is_refused_by_field(rig: Any, request_fields: dict[str, Any], field: str) -> None:
    error = await rig.caller.error(rig.stub.Resume(pb.ResumeRequest(**request_fields)))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


async def test_a_resumed_stream_outlives_its_scheduler_too(rig: Any, spell: Spell) -> None:
    """First its gateway died, then its scheduler: this gateway got the request with the attachment."""
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    attach = await rig.scheduler.next(front.Attach)
    sampling = SamplingParams(seed=99)
    submit = front.Submit(attach.handle, "default", "r", bytes(16), pack_u32([1, 2]), sampling, attempt=2, age_ns=5)
    state = RequestState("test", 1, cache_salt="pepper")
    rig.scheduler.send(_attached(attach, [spell("ab")], state, submit=submit))
    await rig.caller.event(call, "accepted")
    assert (await rig.caller.event(call, "delta")).text == "ab"
    await rig.scheduler.stop()
    await rig.scheduler.start_again()
    again = await rig.scheduler.next(front.Submit)
    assert (again.request_id, again.attempt, again.digest, again.cache_salt) == ("r", 3, submit.digest, "pepper")
    assert (again.sampling, again.gateway_state) == (sampling, encode_state(state))
    assert [list(unpack_u32(ids)) for ids in again.emitted] == [spell("ab")]
    rig.scheduler.send(front.Accepted(again.handle, 1, 0))
    rig.scheduler.tokens(again.handle, 2, *spell("c"))
    rig.scheduler.finish(again.handle, 3)
    assert (await rig.caller.event(call, "delta")).text == "c"


async def test_a_resumed_stream_whose_scheduler_told_no_more_breaks(rig: Any, spell: Spell) -> None:
    """A scheduler one minor behind does not send the request, so it cannot be submitted again; the client resumes."""
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r"))
    attach = await rig.scheduler.next(front.Attach)
    rig.scheduler.send(_attached(attach, [spell("a")], RequestState("test", 1)))
    await rig.caller.event(call, "accepted")
    await rig.scheduler.stop()
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_SCHEDULER")
    await rig.scheduler.start_again()
