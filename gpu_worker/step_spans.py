"""The worker's span of a step, below the scheduler's span of the iteration where a plan carries one."""

import time
from collections.abc import Callable

from opentelemetry.trace import SpanKind, Status, StatusCode

from chairlift.ipc.device import NeedSnapshot, Plan, StepDone, StepFailed
from chairlift.runtime.tracing import Tracing, context_of


class StepSpans:
    """Makes spans of steps that were carried out. Holds nothing of a step."""

    def __init__(self, tracing: Tracing, wall_clock: Callable[[], int] = time.time_ns) -> None:
        self._tracing = tracing
        self._wall_clock = wall_clock

    def note(self, plan: Plan, result: StepDone | StepFailed | NeedSnapshot | None) -> None:
        """A plan was carried out just now, or not; nothing for one without a context."""
        if not plan.traceparent:
            return
        end = self._wall_clock()
        took_ns = result.device_ns + result.host_ns if isinstance(result, StepDone) else 0
        context = context_of(plan.traceparent, "")
        span = self._tracing.tracer.start_span(
            "step", context, SpanKind.CONSUMER, {"chairlift.step": plan.step}, start_time=end - took_ns
        )
        match result:
            case StepDone():
                span.set_attribute("chairlift.device_ms", result.device_ns / 1e6)
                span.set_attribute("chairlift.host_ms", result.host_ns / 1e6)
            case StepFailed():
                span.set_attribute("error.type", result.kind)
                span.set_status(Status(StatusCode.ERROR, result.kind))
            case NeedSnapshot() | None:
                span.set_attribute("error.type", "refused")
                span.set_status(Status(StatusCode.ERROR, "refused"))
        span.end(end)

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._tracing.close()
