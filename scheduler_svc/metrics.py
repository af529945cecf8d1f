"""The scheduler's metrics: the core's own counts, as its beats to gateways tell them.

The loop leaves a report here twice a second; a scrape reads the last one, and never the core of a running loop.
"""

from chairlift.ipc import front
from chairlift.runtime.metric_table import KV_USAGE, SCHEDULER_READINGS
from chairlift.runtime.metrics import ProcessMetrics


class SchedulerMetrics:
    """Owns the last report."""

    def __init__(self) -> None:
        self.latest = front.Load()
        """Written by the loop."""
        self._metrics = ProcessMetrics("scheduler")
        for field, spec in SCHEDULER_READINGS.items():
            self._metrics.observe(spec, lambda field=field: getattr(self.latest, field))  # type: ignore[misc]
        self._metrics.observe(KV_USAGE, self._kv_usage)

    def exposition(self) -> str:
        """For a scrape."""
        return self._metrics.exposition()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._metrics.close()

    def _kv_usage(self) -> float:
        load = self.latest
        return load.blocks_used / load.blocks_total if load.blocks_total else 0.0
