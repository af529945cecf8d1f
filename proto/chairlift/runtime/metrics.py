"""Metrics of one process: an OpenTelemetry meter, a Prometheus text of it, and OTLP where the environment asks for it.

What is counted already is read when somebody asks (`observe`); only what has a distribution is recorded (`histogram`).
Knows what is in `metric_table` by its specs, and nothing of what they mean.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Histogram, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from chairlift.runtime.metric_table import MetricKind, MetricSpec
from chairlift.runtime.otlp import make_exporter, process_resource

Reading = float | Mapping[str, float]
"""A number, or numbers by the value of the metric's label."""

_CLOSE_TIMEOUT_S = 2.0
"""For the last export; beyond it, what was not exported is lost."""


class ProcessMetrics:
    """Owns the meter of a process. Any thread may record and ask."""

    def __init__(self, process: str, environ: Mapping[str, str] = os.environ) -> None:
        self._registry = CollectorRegistry()
        # Scope labels would add the same three labels to every series.
        scrape = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        readers: list[MetricReader] = [scrape]
        exporter = make_exporter("metrics", environ)
        if exporter is not None:
            readers.append(PeriodicExportingMetricReader(exporter))
        self._provider = MeterProvider(readers, process_resource(process, environ), shutdown_on_exit=False)
        self._meter = self._provider.get_meter("chairlift")
        self._asking = threading.Lock()

    def observe(self, spec: MetricSpec, read: Callable[[], Reading]) -> None:
        """Tells what `read` returns, called on the thread that asks, at the time of asking."""

        def observations(_: CallbackOptions) -> Iterable[Observation]:
            match read():
                case int() | float() as number:
                    return [Observation(number)]
                case numbers:
                    return [Observation(number, {spec.labels[0]: value}) for value, number in numbers.items()]

        match spec.kind:
            case MetricKind.COUNTER:
                self._meter.create_observable_counter(spec.name, [observations], spec.unit, spec.description)
            case MetricKind.GAUGE:
                self._meter.create_observable_gauge(spec.name, [observations], spec.unit, spec.description)
            case MetricKind.HISTOGRAM:
                raise ValueError(f"{spec.name}: a histogram is recorded")

    def histogram(self, spec: MetricSpec) -> Histogram:
        """To record measurements in."""
        boundaries: Sequence[float] = spec.boundaries
        return self._meter.create_histogram(
            spec.name, spec.unit, spec.description, explicit_bucket_boundaries_advisory=boundaries
        )

    def exposition(self) -> str:
        """Everything, as Prometheus' text format 0.0.4."""
        with self._asking:
            return generate_latest(self._registry).decode()

    def close(self) -> None:
        """Exports what is left, within a bounded time whatever the other side does."""
        closing = threading.Thread(target=self._provider.shutdown, name="metrics-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)
