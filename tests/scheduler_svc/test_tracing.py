"""Spans of requests: the phases of each, below the gateway's span, with the status of its end."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chairlift.ipc import front
from chairlift.ipc.common import Reason
from chairlift.runtime.process import StopSignal
from chairlift.runtime.settings import Settings
from chairlift.runtime.tracing import Tracing
from scheduler_svc.service import SchedulerService

New = Callable[..., Any]


@pytest.fixture
def spans(settings: Settings) -> Iterator[Callable[[], dict[str, list[ReadableSpan]]]]:
    """A traced scheduler runs until this is called, which returns its spans by trace, in order of time."""
    exporter = InMemorySpanExporter()
    service = SchedulerService(settings, Tracing("scheduler", exporter, environ={}))
    stop = StopSignal()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()

    def finish() -> dict[str, list[ReadableSpan]]:
        stop.request()
        thread.join(30)
        service.close()
        found: dict[str, list[ReadableSpan]] = {}
        ended = [span for span in exporter.get_finished_spans() if span.name != "iteration"]
        for span in sorted(ended, key=lambda span: (span.start_time, span.end_time)):
            found.setdefault(f"{span.context.trace_id:032x}", []).append(span)
        return found

    yield finish
    if thread.is_alive():
        finish()
    stop.close()


def _parent(digit: str, flags: str = "01") -> str:
    return f"00-{digit * 32}-{digit * 16}-{flags}"


def _told(spans: list[ReadableSpan]) -> list[tuple[str, str | None]]:
    return [(span.name, span.status.description) for span in spans]


def test_each_request_has_its_phases(spans: New, new_gateway: New, new_worker: New) -> None:
    gateway, worker = new_gateway(), new_worker()
    worker.greet()
    gateway.greet()
    gateway.receive(front.SchedulerHello)
    gateway.submit(256, traceparent=_parent("1"), max_tokens=2)
    for _ in range(2):
        worker.step()
    gateway.receive(front.Finished)
    gateway.submit(512, traceparent=_parent("2"), prompt=b"")
    gateway.receive(front.Refused)
    gateway.submit(768, traceparent=_parent("5", "00"), max_tokens=1)
    worker.step()
    gateway.receive(front.Finished)
    gateway.submit(1024, traceparent=_parent("4"), max_tokens=1, deadline_in_ns=1)
    assert gateway.receive(front.Finished).handle == 1024
    worker.step()
    gateway.submit(1280, traceparent=_parent("3"), max_tokens=50)
    worker.step()
    gateway.receive(front.Deltas)
    gateway.send(front.Detach(1280))
    found = spans()
    assert set(found) == {digit * 32 for digit in "1234"}
    assert _told(found["1" * 32]) == [("queue", None), ("prefill", None), ("decode", None)]
    assert _told(found["2" * 32]) == [("queue", Reason.INVALID_REQUEST)]
    assert _told(found["3" * 32]) == [("queue", None), ("prefill", None), ("decode", Reason.CANCELLED)]
    assert _told(found["4" * 32]) == [("queue", None), ("prefill", Reason.DEADLINE)]
    for digit in "1234":
        for span in found[digit * 32]:
            assert span.parent is not None
            assert f"{span.parent.span_id:016x}" == digit * 16
    queue, prefill, decode = found["1" * 32]
    assert (queue.end_time, prefill.end_time) == (prefill.start_time, decode.start_time)
    assert prefill.attributes == {
        "chairlift.request_id": "r256",
        "gen_ai.usage.input_tokens": 3,
        "chairlift.cached_tokens": 0,
    }
    assert decode.attributes == {
        "chairlift.request_id": "r256",
        "gen_ai.usage.output_tokens": 2,
        "chairlift.preemptions": 0,
    }


class _Stuck(SpanExporter):
    """A collector that takes everything and never answers."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.num_spans = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.num_spans += len(spans)
        self.release.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Nothing to free."""


def test_a_collector_that_hangs_costs_spans_and_no_time() -> None:
    """Ten times what the queue holds goes in; ending spans and closing return all the same."""
    stuck = _Stuck()
    tracing = Tracing("scheduler", stuck, environ={})
    for _ in range(20_480):
        tracing.tracer.start_span("queue").end()
    tracing.close()
    assert stuck.num_spans <= 512
    stuck.release.set()
