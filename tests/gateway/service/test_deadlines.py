"""A call ends with a typed status before its client gives up, whatever the scheduler does."""

import time
from typing import Any

import grpc
import pytest

from chairlift.ipc import front
from chairlift.v1 import inference_pb2 as pb
from gateway.call import end_margin_s


async def test_a_silent_scheduler_does_not_keep_a_request_over_its_deadline(
    rig: Any, spell: Any, wide_margin: None
) -> None:
    call = rig.stub.Generate(pb.GenerateRequest(text="hi"), timeout=1.0)
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("ab"))
    await rig.caller.event(call, "accepted")
    assert (await rig.caller.event(call, "delta")).text == "ab"
    finished = await rig.caller.event(call, "finished")
    assert (finished.reason, finished.failure.reason) == (pb.FINISH_REASON_DEADLINE, "DEADLINE")
    assert finished.usage.output_tokens == 2
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")
    assert (await rig.scheduler.next(front.Detach)).handle == submit.handle
    assert submit.deadline_in_ns is not None
    assert submit.deadline_in_ns < 1e9


async def test_one_that_was_never_accepted_ends_typed_as_well(rig: Any, wide_margin: None) -> None:
    call = rig.stub.Generate(pb.GenerateRequest(text="hi"), timeout=1.0)
    await rig.scheduler.next(front.Submit)
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")


async def test_the_deadline_of_a_resume_ends_that_attachment_only(rig: Any, wide_margin: None) -> None:
    call = rig.stub.Resume(pb.ResumeRequest(request_id="r"), timeout=1.0)
    attach = await rig.scheduler.next(front.Attach)
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")
    assert (await rig.scheduler.next(front.Detach)).handle == attach.handle
    assert rig.scheduler.heard(front.Cancel) == []


async def test_a_question_that_nobody_answers_ends_typed(rig: Any, wide_margin: None) -> None:
    call = rig.stub.Explain(pb.ExplainRequest(request_id="r"), timeout=1.0)
    error = await rig.caller.error(call)
    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")


@pytest.mark.parametrize("left_s", [0.0, 0.001, 0.01, 0.1, 1.0, 3600.0])
def test_margins(left_s: float) -> None:
    margin = end_margin_s(left_s)
    assert 0 <= margin <= left_s / 2
    assert margin <= 0.025
    assert end_margin_s(-time.monotonic()) == 0
