"""What is told of the worker: what became of each plan, as metrics, and as a span where the plan asks for one.

Measurements are noted as they come, and recorded some steps later, when there is nothing to do, or when somebody
scrapes: after a step the caches hold the model's weights, and OpenTelemetry's code would come from memory each time.
"""

from collections import deque
from typing import NamedTuple

from chairlift.ipc.device import NeedSnapshot, Plan, StepDone, StepFailed
from chairlift.ipc.tokens import unpack_u32
from chairlift.runtime.metric_table import (
    PLAN_SIZE,
    STEP_DURATION,
    WORKER_FAILED,
    WORKER_FOREIGN,
    WORKER_REFUSED,
    WORKER_STEPS,
)
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.span_metrics import observe_spans
from chairlift.runtime.tracing import Tracing
from gpu_worker.runner import RunnerCounters
from gpu_worker.step_spans import StepSpans

_DEVICE, _HOST = {"part": "device"}, {"part": "host"}
_NS_PER_S = 1_000_000_000
_NOTED_AT_MOST = 32


class _Measured(NamedTuple):
    device_ns: int
    host_ns: int
    num_tokens: int


class WorkerMetrics:
    """Publishes the runner's counts, owns the distributions. Written by the worker's loop, read by whoever scrapes."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        """Owns `tracing`."""
        self._spans = StepSpans(tracing) if tracing is not None else None
        self._counters = RunnerCounters()
        self._metrics = ProcessMetrics("worker")
        self._metrics.observe(WORKER_STEPS, lambda: self._counters.steps)
        self._metrics.observe(WORKER_FAILED, lambda: self._counters.failed)
        self._metrics.observe(WORKER_REFUSED, lambda: self._counters.refused)
        self._metrics.observe(WORKER_FOREIGN, lambda: self._counters.foreign)
        observe_spans(self._metrics, tracing)
        self._duration = self._metrics.histogram(STEP_DURATION)
        self._plan_size = self._metrics.histogram(PLAN_SIZE)
        self._noted: deque[_Measured] = deque()

    def follow(self, counters: RunnerCounters) -> None:
        """Tells these counts from now on; zeros before, while there is no runner."""
        self._counters = counters

    def note(self, plan: Plan, result: StepDone | StepFailed | NeedSnapshot | None) -> None:
        """A plan was carried out, or not: only one that was is measured."""
        if self._spans is not None:
            self._spans.note(plan, result)
        if isinstance(result, StepDone):
            num_chunked = sum(unpack_u32(plan.chunks)[1::2]) if plan.chunks else 0
            self._noted.append(_Measured(result.device_ns, result.host_ns, len(plan.decode) // 4 + num_chunked))
            if len(self._noted) >= _NOTED_AT_MOST:
                self.record_noted()

    def record_noted(self) -> None:
        """Any thread's: each measurement is taken by one."""
        while True:
            try:
                measured = self._noted.popleft()
            except IndexError:
                return
            self._duration.record(measured.device_ns / _NS_PER_S, _DEVICE)
            self._duration.record(measured.host_ns / _NS_PER_S, _HOST)
            self._plan_size.record(measured.num_tokens)

    def exposition(self) -> str:
        """For a scrape."""
        self.record_noted()
        return self._metrics.exposition()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self.record_noted()
        self._metrics.close()
        if self._spans is not None:
            self._spans.close()
