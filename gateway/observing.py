"""What is told of the calls that ask for tokens: OpenTelemetry's metrics for GenAI, ours, spans, and a line of the log.

Everything is recorded at a call's end, from what its generation knows then; nothing happens for a token. No text of a
request or an output is in it.
"""

import time
from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from chairlift.ipc.common import Reason
from chairlift.runtime.metric_table import (
    REFUSALS,
    REQUEST_DURATION,
    REQUESTS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    MetricSpec,
)
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.span_metrics import observe_spans
from chairlift.runtime.tracing import Tracing
from gateway.call import Call
from gateway.call_spans import CallSpans
from gateway.errors.table import STATUS_RULES, status_rule
from gateway.request_log import RequestLog
from gateway.streams.generation import Generation

_OTHER = "_OTHER"
"""Stands for a reason that is not in our table: the number of series is bounded."""


class CallObserver:
    """Sees the beginning and the end of each Generate and Resume. Belongs to one event loop; anyone may scrape."""

    def __init__(
        self, model: str, readings: Mapping[MetricSpec, Callable[[], int]], tracing: Tracing | None = None
    ) -> None:
        """`model` is the name that it is served by; `readings` are counted elsewhere, and read by a scrape on its own
        thread. Owns `tracing`.
        """
        self._model = model
        self._spans = CallSpans(tracing, model) if tracing is not None else None
        self._codes = dict.fromkeys(["OK", *(rule.code.name for rule in STATUS_RULES.values())], 0)
        self._refusals = dict.fromkeys([*map(str, STATUS_RULES), _OTHER], 0)
        self._metrics = ProcessMetrics("gateway")
        self._metrics.observe(REQUESTS, self._codes.copy)
        self._metrics.observe(REFUSALS, self._refusals.copy)
        for spec, read in readings.items():
            self._metrics.observe(spec, read)
        observe_spans(self._metrics, tracing)
        self._log = RequestLog()
        self._duration = self._metrics.histogram(REQUEST_DURATION)
        self._first_token = self._metrics.histogram(TIME_TO_FIRST_TOKEN)
        self._output_token = self._metrics.histogram(TIME_PER_OUTPUT_TOKEN)

    def exposition(self) -> str:
        """For a scrape."""
        return self._metrics.exposition()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._metrics.close()
        if self._spans is not None:
            self._spans.close()

    def began(self, method: str, call: Call) -> None:
        """The call is here."""
        if self._spans is not None:
            self._spans.began(method, call)

    def ended(self, method: str, call: Call) -> None:
        """The call is over; `call.failure` says how."""
        failure = call.failure
        code = status_rule(failure).code.name if failure else "OK"
        self._codes[code] += 1
        error_type = failure if failure in STATUS_RULES else _OTHER
        generation = call.generation
        is_in = generation is not None and generation.is_accepted
        if failure and failure != Reason.CANCELLED and not is_in:
            self._refusals[error_type] += 1
        first_at = None if generation is None else _first_token_at(generation)
        if method == "Generate":
            self._record(call, error_type if failure else "", first_at)
        self._log.ended(method, code, call, first_at)
        if self._spans is not None:
            self._spans.ended(call, first_at)

    def _record(self, call: Call, error_type: str, first_at: float | None) -> None:
        duration_s = time.monotonic() - call.arrived_at
        # With its span, so that a sampled call becomes an exemplar.
        context = set_span_in_context(call.span, Context())
        attributes = {
            "gen_ai.operation.name": call.operation,
            "gen_ai.provider.name": "chairlift",
            "gen_ai.request.model": self._model,
        }
        if error_type:
            self._duration.record(duration_s, attributes | {"error.type": error_type}, context)
            return
        self._duration.record(duration_s, attributes, context)
        if call.generation is None or first_at is None:
            return
        first_token_s = first_at - call.arrived_at
        self._first_token.record(first_token_s, attributes, context)
        longest = max(len(choice.ids) for choice in call.generation.choices)
        if longest > 1:
            self._output_token.record((duration_s - first_token_s) / (longest - 1), attributes, context)


def _first_token_at(generation: Generation) -> float | None:
    """Seconds of the monotonic clock; None before the first token of any choice."""
    return min((at for choice in generation.choices if (at := choice.gaps.first_at) is not None), default=None)
