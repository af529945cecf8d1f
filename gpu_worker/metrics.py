"""What is told of the worker: what became of each plan, as metrics, and as a span where the plan asks for one."""

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

    def follow(self, counters: RunnerCounters) -> None:
        """Tells these counts from now on; zeros before, while there is no runner."""
        self._counters = counters

    def note(self, plan: Plan, result: StepDone | StepFailed | NeedSnapshot | None) -> None:
        """A plan was carried out, or not: only one that was is measured."""
        if self._spans is not None:
            self._spans.note(plan, result)
        if isinstance(result, StepDone):
            self._duration.record(result.device_ns / _NS_PER_S, _DEVICE)
            self._duration.record(result.host_ns / _NS_PER_S, _HOST)
            self._plan_size.record(len(plan.decode) // 4 + sum(unpack_u32(plan.chunks)[1::2]))

    def exposition(self) -> str:
        """For a scrape."""
        return self._metrics.exposition()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._metrics.close()
        if self._spans is not None:
            self._spans.close()
