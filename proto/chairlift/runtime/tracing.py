"""Spans of one process, sent by OTLP where the standard environment variables ask for it; otherwise there are none.

Sampling, queue and batch sizes are the standard variables' too (``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_…``). Ending a span
puts it into a bounded queue; a collector that is slow or gone costs spans, never time.
"""

import os
import threading
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chairlift.runtime.otlp import make_exporter, process_resource
from chairlift.runtime.span_queue import SpanQueue

_PROPAGATOR = TraceContextTextMapPropagator()
_CLOSE_TIMEOUT_S = 2.0
"""For the last spans; beyond it, what was not exported is lost."""


class Tracing:
    """Owns the tracer of a process. Any thread may make spans."""

    def __init__(self, process: str, exporter: SpanExporter, environ: Mapping[str, str] = os.environ) -> None:
        self._provider = TracerProvider(resource=process_resource(process, environ), shutdown_on_exit=False)
        self.queue = SpanQueue(exporter, environ)
        """Ended spans on their way out, and the count of those that were lost."""
        self._provider.add_span_processor(self.queue)
        self.tracer = self._provider.get_tracer("chairlift")

    def close(self) -> None:
        """Exports what is left, within a bounded time whatever the other side does."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


def open_tracing(process: str, environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """None where the environment asks for no traces."""
    exporter = make_exporter("traces", environ)
    return None if exporter is None else Tracing(process, exporter, environ)


def context_of(traceparent: str, tracestate: str) -> Context:
    """The context that W3C headers carry; an empty one where they carry none that is valid."""
    return _PROPAGATOR.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())


def headers_of(span: Span) -> tuple[str, str]:
    """(traceparent, tracestate) for what is to go on below `span`."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")
