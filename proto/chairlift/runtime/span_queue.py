"""A bounded queue of ended spans and the thread that exports them. What does not fit, or cannot be sent, is counted.

The processes' own loops only append to it: a collector that is slow or gone costs spans, never time. OpenTelemetry's
batch processor does the same and keeps its count of dropped spans to itself. Sizes and times are those of the standard
variables ``OTEL_BSP_SCHEDULE_DELAY``, ``OTEL_BSP_MAX_QUEUE_SIZE`` and ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE``.
"""

import threading
from collections import deque
from collections.abc import Mapping

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

QUEUE_FULL = "queue_full"
EXPORT_FAILED = "export_failed"

_DEFAULTS = {"SCHEDULE_DELAY": 5000, "MAX_QUEUE_SIZE": 2048, "MAX_EXPORT_BATCH_SIZE": 512}


class SpanQueue(SpanProcessor):
    """Takes spans from any thread, hands them to the exporter on one of its own. Owns the exporter."""

    def __init__(self, exporter: SpanExporter, environ: Mapping[str, str]) -> None:
        self._exporter = exporter
        self._delay_s = _number(environ, "SCHEDULE_DELAY") / 1000
        self._max_spans = _number(environ, "MAX_QUEUE_SIZE")
        self._batch_size = min(_number(environ, "MAX_EXPORT_BATCH_SIZE"), self._max_spans)
        self._spans: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._is_closed = False
        self._dropped = {QUEUE_FULL: 0, EXPORT_FAILED: 0}
        self._exported = 0
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def dropped(self) -> dict[str, int]:
        """Spans lost since the start, by reason."""
        return dict(self._dropped)

    def exported(self) -> int:
        """Spans that were sent."""
        return self._exported

    # ---- what the SDK calls ----

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: spans count once they have ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Takes a span where there is room."""
        if not (span.context and span.context.trace_flags.sampled):
            return
        if self._is_closed or len(self._spans) >= self._max_spans:
            self._dropped[QUEUE_FULL] += 1
            return
        self._spans.append(span)
        if len(self._spans) >= self._batch_size and not self._wake.is_set():
            self._wake.set()

    def shutdown(self) -> None:
        """Sends what is left, then ends. Takes as long as the exporter does."""
        self._is_closed = True
        self._wake.set()
        self._thread.join()
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Not offered: spans leave by time and number, and at the end."""
        return not self._spans

    # ---- the thread ----

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(len(self._spans), self._batch_size))]
            if self._is_exported(batch):
                self._exported += len(batch)
            else:
                self._dropped[EXPORT_FAILED] += len(batch)

    def _is_exported(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001  # whatever an exporter raises must not end its thread
            self._log.warning("spans_not_exported", error=type(error).__name__, spans=len(batch))
            return False


def _number(environ: Mapping[str, str], name: str) -> int:
    """A standard variable's value; its default where it is no positive number."""
    text = environ.get(f"OTEL_BSP_{name}", "").strip()
    return int(text) if text.isdigit() and int(text) > 0 else _DEFAULTS[name]
