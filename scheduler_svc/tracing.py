"""Spans of the requests whose trace is sampled: queue, prefill, decode, below the gateway's span.

The core knows nothing of it. A request's account (when it arrived, boarded, had its first token, ended, and why) is
read once it has ended, and becomes its spans then; while a request runs, nothing is done for it.
"""

import time
from collections.abc import Callable, Iterable

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, get_current_span
from opentelemetry.util.types import AttributeValue

from chairlift.ipc import front
from chairlift.runtime.tracing import Tracing, context_of
from scheduler_svc.core import effects, emission
from scheduler_svc.core.request import Request


class Phase(msgspec.Struct, frozen=True):
    """A part of a request's life, in nanoseconds since its arrival."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]


class _Traced(msgspec.Struct, frozen=True):
    request: Request
    context: Context
    epoch_ns: int
    """Wall clock less the core's clock."""


class RequestSpans:
    """Owns the sampled requests that have not ended. Belongs to the scheduler's loop."""

    def __init__(
        self,
        tracing: Tracing,
        find: Callable[[int], Request],
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`find` gives a living request by its number."""
        self._tracing = tracing
        self._find = find
        self._wall_clock = wall_clock
        self._open: list[_Traced] = []

    def submitted(self, submit: front.Submit, done: Iterable[effects.Effect], now: int) -> None:
        """The core has handled `submit` at `now`, with `done` as its answer."""
        context = context_of(submit.traceparent, submit.tracestate)
        if not get_current_span(context).get_span_context().trace_flags.sampled:
            return
        epoch_ns = self._wall_clock() - now
        for effect in done:
            match effect:
                case effects.Emit(_, front.Accepted(handle, number)) if handle == submit.handle:
                    self._open.append(_Traced(self._find(number), context, epoch_ns))
                case effects.Emit(_, front.Refused(handle, reason)) if handle == submit.handle:
                    attributes: dict[str, AttributeValue] = {"chairlift.request_id": submit.request_id}
                    arrival_ns = now + epoch_ns - submit.age_ns
                    self._make(context, arrival_ns, Phase("queue", 0, submit.age_ns, attributes), reason)
                case _:
                    pass

    def end_due(self) -> None:
        """Makes the spans of every request that has ended since the last time."""
        ended = [traced for traced in self._open if traced.request.ended_ns is not None]
        if not ended:
            return
        self._open = [traced for traced in self._open if traced.request.ended_ns is None]
        for traced in ended:
            *passed, last = phases_of(traced.request)
            arrival_ns = traced.request.arrival_ns + traced.epoch_ns
            for phase in passed:
                self._make(traced.context, arrival_ns, phase)
            self._make(traced.context, arrival_ns, last, failure_of(traced.request))

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self.end_due()
        self._tracing.close()

    def _make(self, context: Context, arrival_ns: int, phase: Phase, failure: str = "") -> None:
        span = self._tracing.tracer.start_span(
            phase.name, context, attributes=phase.attributes, start_time=arrival_ns + phase.start_ns
        )
        if failure:
            span.set_attribute("error.type", failure)
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(arrival_ns + phase.end_ns)


def phases_of(request: Request) -> list[Phase]:
    """What a request that has ended went through, in order; at least its time in the queue."""
    assert request.ended_ns is not None
    ends = [emission.finished(sequence, is_last=True) for sequence in request.sequences]
    total_ns = request.ended_ns - request.arrival_ns
    queue_ns = min(ends[0].queue_ns, total_ns)
    phases = [Phase("queue", 0, queue_ns, {"chairlift.request_id": request.key.request_id})]
    if request.first_boarded_ns is None:
        return phases
    first_ns = min((end.ttft_ns for end in ends if end.ttft_ns is not None), default=None)
    # What an earlier scheduler emitted came before this one's queue.
    prefill_end_ns = total_ns if first_ns is None else min(max(first_ns, queue_ns), total_ns)
    prefill: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": request.prompt_len,
        "chairlift.cached_tokens": request.cached_tokens,
    }
    phases.append(Phase("prefill", queue_ns, prefill_end_ns, prefill))
    if first_ns is not None:
        decode: dict[str, AttributeValue] = {
            "gen_ai.usage.output_tokens": sum(end.num_tokens for end in ends),
            "chairlift.preemptions": sum(end.preemptions for end in ends),
        }
        phases.append(Phase("decode", prefill_end_ns, total_ns, decode))
    return phases


def failure_of(request: Request) -> str:
    """Reason of the first choice that did not end well; empty when all did."""
    ends = (sequence.end for sequence in request.sequences)
    return next((end.failure_reason for end in ends if end is not None and end.failure_reason), "")
