"""The scheduler's metrics: the core's own counts, and what else its shell can tell of it.

The loop leaves a report here twice a second; a scrape reads the last one, and never the core of a running loop.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import WaitReason
from chairlift.runtime import metric_table as table
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.span_metrics import observe_spans
from chairlift.runtime.tracing import Tracing
from scheduler_svc.core.core import Core
from scheduler_svc.tenant_service import TenantService

_NS_PER_S = 1_000_000_000
_TENANTS_EVERY = 10
"""Reports: looking at every tenant costs more than the rest."""


class Figures(msgspec.Struct, frozen=True):
    """What is told beside the load report."""

    seats: int = 0
    token_budget: int = 0
    token_budget_usage: float = 0.0
    waits_s: dict[str, float] = msgspec.field(default_factory=lambda: _seconds([0] * (len(WaitReason) + 1)))
    prediction_error: float = 0.0
    num_predictions: int = 0
    failed_steps: int = 0
    excused_losses: int = 0
    stale_results: int = 0
    busy_s: float = 0.0


class SchedulerMetrics:
    """Owns the last report."""

    def __init__(self, tracing: Tracing | None = None, max_tenant_series: int = 20) -> None:
        self.latest = front.Load()
        """Written by the loop."""
        self._figures = Figures()
        self._tenants = TenantService(max_tenant_series)
        self._tenant_series = self._tenants.series()
        self._num_reports = 0
        self._metrics = ProcessMetrics("scheduler")
        for field, spec in table.SCHEDULER_READINGS.items():
            self._metrics.observe(spec, partial(self._read_load, field))
        self._metrics.observe(table.KV_USAGE, lambda: self._share_of_blocks(self.latest.blocks_used))
        self._metrics.observe(table.KV_CACHED_SHARE, lambda: self._share_of_blocks(self.latest.blocks_cached))
        self._observe_figures()
        self._metrics.observe(table.TENANT_SERVICE, lambda: self._tenant_series)
        observe_spans(self._metrics, tracing)

    def report(self, load: front.Load, core: Core, busy_ns: int) -> None:
        """Takes in the state of this moment; `busy_ns` is how long the loop has worked since its start."""
        self.latest = load
        self._figures = _figures(core, busy_ns)
        # Without requests this report may be the last for long.
        if core.is_idle or self._num_reports % _TENANTS_EVERY == 0:
            self._tenants.update(core.state.tenants, core.state.confirmed.step)
            self._tenant_series = self._tenants.series()
        self._num_reports += 1

    def exposition(self) -> str:
        """For a scrape."""
        return self._metrics.exposition()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._metrics.close()

    def _observe_figures(self) -> None:
        readings: dict[table.MetricSpec, Callable[[Figures], float]] = {
            table.SEATS: lambda figures: figures.seats,
            table.TOKEN_BUDGET: lambda figures: figures.token_budget,
            table.TOKEN_BUDGET_USAGE: lambda figures: figures.token_budget_usage,
            table.PREDICTION_ERROR: lambda figures: figures.prediction_error,
            table.PREDICTIONS: lambda figures: figures.num_predictions,
            table.FAILED_STEPS: lambda figures: figures.failed_steps,
            table.EXCUSED_LOSSES: lambda figures: figures.excused_losses,
            table.STALE_RESULTS: lambda figures: figures.stale_results,
            table.LOOP_BUSY: lambda figures: figures.busy_s,
        }
        for spec, read in readings.items():
            self._metrics.observe(spec, partial(self._read_figures, read))
        self._metrics.observe(table.QUEUE_WAIT, lambda: self._figures.waits_s)

    def _read_load(self, field: str) -> int:
        return int(getattr(self.latest, field))

    def _read_figures(self, read: Callable[[Figures], float]) -> float:
        return read(self._figures)

    def _share_of_blocks(self, count: int) -> float:
        return count / self.latest.blocks_total if self.latest.blocks_total else 0.0


def _figures(core: Core, busy_ns: int) -> Figures:
    state, limits = core.state, core.limits()
    usage = 0.0
    if state.in_flight and limits.max_num_batched_tokens:
        step = state.in_flight[-1]
        num_tokens = step.num_decodes + sum(chunk.num_tokens for chunk in step.chunks)
        usage = num_tokens / limits.max_num_batched_tokens
    return Figures(
        seats=limits.max_num_seqs,
        token_budget=limits.max_num_batched_tokens,
        token_budget_usage=usage,
        waits_s=_seconds(state.counters.waits_ns),
        prediction_error=state.forecast.mean_relative_error,
        num_predictions=state.forecast.num_checked,
        failed_steps=state.counters.failed_steps,
        excused_losses=state.counters.excused_losses,
        stale_results=state.counters.stale_results,
        busy_s=busy_ns / _NS_PER_S,
    )


def _seconds(waits_ns: Sequence[int]) -> dict[str, float]:
    return {reason.name.lower(): waits_ns[reason] / _NS_PER_S for reason in WaitReason}
