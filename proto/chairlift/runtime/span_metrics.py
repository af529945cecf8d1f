"""How many spans a process has sent and lost, as metrics of it."""

from chairlift.runtime.metric_table import SPANS_DROPPED, SPANS_EXPORTED
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.span_queue import EXPORT_FAILED, QUEUE_FULL
from chairlift.runtime.tracing import Tracing


def observe_spans(metrics: ProcessMetrics, tracing: Tracing | None) -> None:
    """Tells of `tracing`; zeros where nothing is traced."""
    if tracing is None:
        metrics.observe(SPANS_EXPORTED, lambda: 0)
        metrics.observe(SPANS_DROPPED, lambda: {QUEUE_FULL: 0, EXPORT_FAILED: 0})
    else:
        metrics.observe(SPANS_EXPORTED, tracing.queue.exported)
        metrics.observe(SPANS_DROPPED, tracing.queue.dropped)
