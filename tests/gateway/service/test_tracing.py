"""The gateway's span of a call: whose child it is, how it ends, what is passed on."""

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.runtime.tracing import Tracing
from chairlift.v1 import inference_pb2 as pb

_TRACE, _CALLER = "1" * 32, "2" * 16


def _metadata(flags: str = "01") -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{_TRACE}-{_CALLER}-{flags}"),)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def _by_status(spans: tuple[ReadableSpan, ...]) -> dict[str, ReadableSpan]:
    """Spans by the reason of their end."""
    return {span.status.description or "OK": span for span in spans}


async def test_every_end_of_a_call_ends_its_span(start_rig: Any, exporter: InMemorySpanExporter) -> None:
    """vllm#14330, #38672: traces lost or mixed up. Each request's goes on in its Submit."""
    parents = {}
    async with start_rig(tracing=Tracing("gateway", exporter, environ={})) as rig:
        scheduler, generate = rig.scheduler, rig.stub.Generate
        call = generate(pb.GenerateRequest(text="SECRET"), metadata=_metadata())
        submit = await scheduler.accept()
        parents["OK"] = submit.traceparent
        scheduler.tokens(submit.handle, 0, 70, 71, 72)
        scheduler.finish(submit.handle, 3)
        await rig.caller.events(call)
        call = generate(pb.GenerateRequest(text="hi"), metadata=_metadata())
        submit = await scheduler.next(front.Submit)
        parents["QUEUE_FULL"] = submit.traceparent
        scheduler.send(front.Refused(submit.handle, Reason.QUEUE_FULL, "full"))
        await rig.caller.error(call)
        call = generate(pb.GenerateRequest(text="hi"), metadata=_metadata())
        submit = await scheduler.accept()
        scheduler.finish(submit.handle, 0, FinishReason.DEADLINE, failure_reason=Reason.DEADLINE)
        await rig.caller.error(call)
        call = generate(pb.GenerateRequest(text="hi"), metadata=_metadata())
        submit = await scheduler.accept()
        await rig.caller.event(call, "accepted")
        call.cancel()
        await scheduler.next(front.Detach)
        await rig.caller.error(generate(pb.GenerateRequest(), metadata=_metadata()))
    spans = _by_status(exporter.get_finished_spans())
    assert set(spans) == {"OK", "QUEUE_FULL", "DEADLINE", "CANCELLED", "INVALID_REQUEST"}
    for reason, span in spans.items():
        assert (span.name, span.kind) == ("chairlift.v1.InferenceService/Generate", SpanKind.SERVER)
        assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (_TRACE, _CALLER)  # type: ignore[union-attr]
        assert span.status.status_code is (StatusCode.UNSET if reason == "OK" else StatusCode.ERROR)
        assert "SECRET" not in span.to_json()
    for reason, parent in parents.items():
        assert parent == f"00-{_TRACE}-{spans[reason].context.span_id:016x}-01"
    codes = {reason: span.attributes["rpc.grpc.status_code"] for reason, span in spans.items() if span.attributes}
    assert codes == {"OK": 0, "CANCELLED": 1, "INVALID_REQUEST": 3, "DEADLINE": 4, "QUEUE_FULL": 8}
    good = spans["OK"].attributes
    assert good is not None
    assert (good["gen_ai.usage.output_tokens"], good["gen_ai.response.finish_reasons"]) == (3, ("length",))


async def test_how_a_request_samples_is_told_as_far_as_otlp_can(start_rig: Any, exporter: InMemorySpanExporter) -> None:
    """A seed has 64 bits without a sign, an attribute has one: encoding it would fail, and lose the whole batch."""
    async with start_rig(tracing=Tracing("gateway", exporter, environ={})) as rig:
        for seed in (7, 2**64 - 1):
            sampling = pb.Sampling(temperature=0.5, top_k=40, presence_penalty=0.25, seed=seed)
            call = rig.stub.Generate(pb.GenerateRequest(text="hi", sampling=sampling), metadata=_metadata())
            submit = await rig.scheduler.accept()
            rig.scheduler.finish(submit.handle, 0)
            await rig.caller.events(call)
    spans = exporter.get_finished_spans()
    assert len(encode_spans(spans).resource_spans) == 1
    found = [{key: value for key, value in (span.attributes or {}).items() if ".request." in key} for span in spans]
    common = {"temperature": 0.5, "top_p": 1.0, "top_k": 40, "presence_penalty": 0.25, "model": "test"}
    expected = {f"gen_ai.request.{key}": value for key, value in common.items()} | {"gen_ai.request.choice.count": 1}
    assert [one | expected for one in found] == found
    assert [one.get("gen_ai.request.seed") for one in found] == [7, None]
    assert all((span.attributes or {})["gen_ai.response.model"] == "test" for span in spans)


async def test_a_caller_that_does_not_sample_is_followed(start_rig: Any, exporter: InMemorySpanExporter) -> None:
    async with start_rig(tracing=Tracing("gateway", exporter, environ={})) as rig:
        call = rig.stub.Generate(pb.GenerateRequest(text="hi"), metadata=_metadata("00"))
        submit = await rig.scheduler.accept()
        assert submit.traceparent.startswith(f"00-{_TRACE}-")
        assert submit.traceparent.endswith("-00")
        rig.scheduler.finish(submit.handle, 0)
        await rig.caller.events(call)
    assert exporter.get_finished_spans() == ()
