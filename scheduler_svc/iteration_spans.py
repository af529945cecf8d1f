"""Spans of iterations: each a trace of its own, linked to the sampled requests that rode, with the worker's step below.

Sampled by number: one iteration in so many of those in which a sampled request rode, and by the standard sampler then.
Knows steps by their numbers; which requests rode is told.
"""

import time
from collections.abc import Callable, Iterable

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from chairlift.runtime.tracing import Tracing, headers_of

MAX_LINKS = 128
"""Riders that one span links; as many as a span keeps by default."""
_MAX_OPEN = 4
"""Plans in flight, and those that never had a result."""


class _Open(msgspec.Struct, frozen=True):
    span: Span
    epoch_ns: int
    """Wall clock less the core's clock."""


class IterationSpans:
    """Owns the spans of iterations that are on their way. Belongs to the scheduler's loop."""

    def __init__(self, tracing: Tracing, share: float, wall_clock: Callable[[], int] = time.time_ns) -> None:
        """`share` of iterations with a sampled rider gets a span; 0 is none."""
        self._tracer = tracing.tracer
        self._share = share
        self._wall_clock = wall_clock
        self._owed = 1.0
        self._open: dict[int, _Open] = {}

    def is_next_wanted(self) -> bool:
        """Whether the iteration that has just been planned, in which a sampled request rides, gets a span."""
        self._owed += self._share
        if self._share <= 0 or self._owed < 1:
            return False
        self._owed -= 1
        return True

    def planned(self, step: int, riders: Iterable[SpanContext], attributes: dict[str, AttributeValue], now: int) -> str:
        """The iteration begins at `now`. Returns the context for the worker's span; empty where none is wanted."""
        epoch_ns = self._wall_clock() - now
        links = [Link(context) for context, _ in zip(riders, range(MAX_LINKS), strict=False)]
        span = self._tracer.start_span(
            "iteration", Context(), SpanKind.PRODUCER, attributes, links, start_time=now + epoch_ns
        )
        if not span.is_recording():
            return ""
        if len(self._open) >= _MAX_OPEN:
            self._end(next(iter(self._open)), now, "LOST")
        self._open[step] = _Open(span, epoch_ns)
        return headers_of(span)[0]

    def completed(self, step: int, attributes: dict[str, AttributeValue], now: int) -> None:
        """Its result is here."""
        found = self._open.get(step)
        if found is not None:
            found.span.set_attributes(attributes)
            self._end(step, now)

    def failed(self, reason: str, now: int) -> None:
        """What is on its way will have no result."""
        for step in list(self._open):
            self._end(step, now, reason)

    def close(self) -> None:
        """This process ends before these results: their spans leave, so that the worker's have their parents."""
        for step, opened in list(self._open.items()):
            self._end(step, self._wall_clock() - opened.epoch_ns, "SHUTDOWN")

    def _end(self, step: int, now: int, failure: str = "") -> None:
        opened = self._open.pop(step)
        if failure:
            opened.span.set_attribute("error.type", failure)
            opened.span.set_status(Status(StatusCode.ERROR, failure))
        opened.span.end(now + opened.epoch_ns)
