"""Spans on their way out: what cannot be sent is counted, and nobody waits for it."""

import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from chairlift.runtime.span_queue import EXPORT_FAILED, QUEUE_FULL
from chairlift.runtime.tracing import Tracing

_FAST = {"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}


class _Exporter(SpanExporter):
    """Holds every batch until `go` is set, then answers with `result`, or raises it."""

    def __init__(self, result: SpanExportResult | Exception) -> None:
        self.go, self.called = threading.Event(), threading.Event()
        self.names: list[str] = []
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.called.set()
        assert self.go.wait(20)
        if isinstance(self._result, Exception):
            raise self._result
        self.names += [span.name for span in spans]
        return self._result


def _end_spans(tracing: Tracing, count: int) -> None:
    for number in range(count):
        tracing.tracer.start_span(f"span {number}").end()


def test_every_span_is_sent_once_and_in_order() -> None:
    exporter = _Exporter(SpanExportResult.SUCCESS)
    exporter.go.set()
    tracing = Tracing("gateway", exporter, _FAST | {"OTEL_BSP_MAX_QUEUE_SIZE": "100"})
    _end_spans(tracing, 50)
    tracing.close()
    assert exporter.names == [f"span {number}" for number in range(50)]
    assert (tracing.queue.exported(), tracing.queue.dropped()) == (50, {QUEUE_FULL: 0, EXPORT_FAILED: 0})


def test_a_collector_that_hangs_costs_spans_and_no_time() -> None:
    exporter = _Exporter(SpanExportResult.SUCCESS)
    tracing = Tracing("gateway", exporter, _FAST)
    _end_spans(tracing, 2)
    assert exporter.called.wait(20)
    _end_spans(tracing, 10)
    assert tracing.queue.dropped()[QUEUE_FULL] == 6
    exporter.go.set()
    tracing.close()
    assert tracing.queue.exported() == 6


def test_a_collector_that_is_gone_costs_spans() -> None:
    for answer in (SpanExportResult.FAILURE, ConnectionError("gone")):
        exporter = _Exporter(answer)
        exporter.go.set()
        tracing = Tracing("gateway", exporter, _FAST)
        _end_spans(tracing, 3)
        tracing.close()
        assert (tracing.queue.exported(), tracing.queue.dropped()[EXPORT_FAILED]) == (0, 3)
