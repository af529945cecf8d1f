"""What metrics, spans and the log tell of calls that came by HTTP: all of them, and as HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from chairlift.ipc.common import FinishReason, Reason
from chairlift.runtime.token_hash import hash_token
from chairlift.runtime.tracing import Tracing
from chairlift.v1 import inference_pb2 as pb

COMPLETIONS = "/v1/completions"
_TRACE = "1" * 32


@pytest.fixture
def auth_file(tmp_path: Path) -> str:
    file = tmp_path / "auth.toml"
    file.write_text(
        f"""
[tenants.acme]
[tenants.asks]
methods = ["Explain"]
[[tokens]]
name = "acme"
hash = "{hash_token("acme")}"
tenant = "acme"
[[tokens]]
name = "asks"
hash = "{hash_token("asks")}"
tenant = "asks"
"""
    )
    return str(file)


def _requests(metrics: str) -> dict[str, float]:
    """Calls that ended, by code; those that there are none of are left out."""
    lines = [line for line in metrics.splitlines() if line.startswith("chairlift_gateway_requests_total")]
    counts = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}
    return {code: count for code, count in counts.items() if count}


def _told(span: ReadableSpan) -> tuple[str, Any, Any]:
    assert span.attributes is not None
    return span.name, span.attributes.get("http.response.status_code"), span.attributes.get("error.type")


async def test_what_is_refused_before_it_is_a_request_is_counted_logged_and_traced(
    start_rig: Any, make_http: Any, auth_file: str
) -> None:
    exporter = InMemorySpanExporter()
    settings = {"auth_file": auth_file, "max_request_bytes": 1000, "http_read_timeout_s": 0.2}
    tracing = Tracing("gateway", exporter, environ={})
    with structlog.testing.capture_logs() as lines:
        async with start_rig(http_listen="127.0.0.1:0", tracing=tracing, **settings) as rig:
            http, acme = make_http(rig), "Bearer acme"
            parent = f"00-{_TRACE}-{'2' * 16}-01"
            answers = [
                await http.ask("POST", COMPLETIONS, {"prompt": "x"}, authorization="Bearer no", traceparent=parent),
                await http.ask("POST", COMPLETIONS, {"prompt": "x"}, authorization="Bearer asks"),
                await http.ask("POST", COMPLETIONS, b"{", authorization=acme),
                await http.ask("POST", COMPLETIONS, {"prompt": "x" * 2000}, authorization=acme),
                await http.ask("POST", COMPLETIONS, b"", authorization=acme, content_length="500"),
            ]
            metrics = rig.service._observer.exposition()
    assert [answer.status for answer in answers] == [401, 403, 400, 413, 504]
    reasons = [
        "INVALID_CREDENTIALS",
        "METHOD_NOT_ALLOWED",
        answers[2].error["code"].upper(),
        "REQUEST_TOO_LARGE",
        "DEADLINE",
    ]
    assert _requests(metrics) == {
        "UNAUTHENTICATED": 1,
        "PERMISSION_DENIED": 1,
        "INVALID_ARGUMENT": 2,
        "DEADLINE_EXCEEDED": 1,
    }
    for reason in reasons:
        assert f'chairlift_gateway_refusals_total{{reason="{reason}"}} 1.0' in metrics
    ended = [line for line in lines if line["event"] == "request_ended"]
    assert [(line["transport"], line["method"], line["reason"]) for line in ended] == [
        ("http", "Generate", reason) for reason in reasons
    ]
    # The time that the body was waited for is the call's.
    assert ended[-1]["duration_ms"] >= 200
    spans = exporter.get_finished_spans()
    assert [_told(span) for span in spans] == [
        (f"POST {COMPLETIONS}", answer.status, reason) for answer, reason in zip(answers, reasons, strict=True)
    ]
    assert f"{spans[0].context.trace_id:032x}" == _TRACE == ended[0]["trace_id"]


async def test_spans_and_lines_say_what_a_call_came_by(start_rig: Any, make_http: Any) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing("gateway", exporter, environ={})
    with structlog.testing.capture_logs() as lines:
        async with start_rig(http_listen="127.0.0.1:0", tracing=tracing) as rig:
            http, scheduler = make_http(rig), rig.scheduler
            for reason, failure in ((FinishReason.LENGTH, ""), (FinishReason.ERROR, Reason.STEP_FAILED)):
                asking = asyncio.create_task(http.ask("POST", COMPLETIONS, {"prompt": "x"}))
                submit = await scheduler.accept()
                scheduler.finish(submit.handle, 0, reason, failure_reason=failure)
                await asking
            reader, writer = await http.open("POST", COMPLETIONS, {"prompt": "x", "stream": True})
            submit = await scheduler.accept()
            assert b" 200 " in await reader.readline()
            scheduler.finish(submit.handle, 0, FinishReason.ERROR, failure_reason=Reason.STEP_FAILED)
            assert b"step_failed" in await reader.read()
            writer.close()
            call = rig.stub.Generate(pb.GenerateRequest(text="x"))
            submit = await scheduler.accept()
            scheduler.finish(submit.handle, 0)
            await rig.caller.events(call)
    *by_http, by_grpc = exporter.get_finished_spans()
    name = f"POST {COMPLETIONS}"
    # The last has begun well, and nothing takes that back.
    assert [_told(span) for span in by_http] == [
        (name, 200, None),
        (name, 500, "STEP_FAILED"),
        (name, 200, "STEP_FAILED"),
    ]
    for span in by_http:
        assert span.kind is SpanKind.SERVER
        assert span.attributes is not None
        assert not [key for key in span.attributes if key.startswith("rpc.")]
        told = {key: span.attributes[key] for key in ("http.request.method", "http.route", "url.path", "url.scheme")}
        assert told == {
            "http.request.method": "POST",
            "http.route": COMPLETIONS,
            "url.path": COMPLETIONS,
            "url.scheme": "http",
        }
    assert by_grpc.name == "chairlift.v1.InferenceService/Generate"
    assert by_grpc.attributes is not None
    assert (by_grpc.attributes["rpc.system"], by_grpc.attributes["rpc.grpc.status_code"]) == ("grpc", 0)
    assert not [key for key in by_grpc.attributes if key.startswith(("http.", "url."))]
    transports = [line["transport"] for line in lines if line["event"] == "request_ended"]
    assert transports == ["http", "http", "http", "grpc"]
