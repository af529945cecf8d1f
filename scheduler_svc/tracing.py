"""Spans of the requests whose trace is sampled (queue, prefill, decode, below the gateway's), and of iterations.

The core knows nothing of it. What happens to a sampled request is noted as it happens; its spans are made once it has
ended, from the core's account of it. While no sampled request lives, nothing is done.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, Status, StatusCode, get_current_span

from chairlift.ipc import device, front
from chairlift.runtime.tracing import Tracing, context_of
from scheduler_svc.core import effects, events
from scheduler_svc.core.core import Core
from scheduler_svc.core.steps import Step
from scheduler_svc.iteration_spans import IterationSpans
from scheduler_svc.request_story import Attributes, Phase, Story, failure_of


class _Traced(msgspec.Struct, frozen=True):
    story: Story
    context: Context
    epoch_ns: int
    """Wall clock less the core's clock."""


class RequestSpans:
    """Owns the sampled requests that have not ended. Belongs to the scheduler's loop."""

    def __init__(
        self,
        tracing: Tracing,
        core: Core,
        iteration_share: float = 0.0,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Reads `core`, never changes it. `iteration_share` of the iterations with a sampled rider gets a span."""
        self._tracing = tracing
        self._core = core
        self._wall_clock = wall_clock
        self._iterations = IterationSpans(tracing, iteration_share, wall_clock)
        self._open: dict[int, _Traced] = {}
        self._preemptions = 0

    def submitted(self, submit: front.Submit, done: Iterable[effects.Effect], now: int) -> None:
        """The core has handled `submit` at `now`, with `done` as its answer."""
        context = context_of(submit.traceparent, submit.tracestate)
        if not get_current_span(context).get_span_context().trace_flags.sampled:
            return
        epoch_ns = self._wall_clock() - now
        for effect in done:
            match effect:
                case effects.Emit(_, front.Accepted(handle, number)) if handle == submit.handle:
                    request = self._core.state.by_number[number]
                    self._open[number] = _Traced(Story(request), context, epoch_ns)
                case effects.Emit(_, front.Refused(handle, reason)) if handle == submit.handle:
                    attributes: Attributes = {"chairlift.request_id": submit.request_id}
                    arrival_ns = now + epoch_ns - submit.age_ns
                    self._make(context, arrival_ns, epoch_ns, Phase("queue", 0, submit.age_ns, attributes), reason)
                case _:
                    pass

    def receiving(self, event: events.Event, now: int) -> None:
        """The core is about to handle what came from the worker."""
        if self._open and isinstance(event, events.StepDone):
            self._note_result(event.message, now)

    def received(self, event: events.Event, now: int) -> None:
        """The core has handled what came from the worker."""
        match event:
            case events.WorkerLost() | events.WorkerUp():
                cause = "WORKER_LOST"
            case events.StepFailed() | events.SnapshotNeeded():
                cause = "STEP_FAILED"
            case _:
                return
        self._iterations.failed(cause, now)
        for traced in self._open.values():
            traced.story.note_displaced(cause.lower(), now)

    def sending(self, plan: device.Plan, now: int) -> device.Plan:
        """The plan as it is to leave: with the context of its iteration's span where it has one."""
        if not self._open:
            return plan
        step = next((one for one in self._core.state.in_flight if one.number == plan.step), None)
        if step is None:
            return plan
        self._note_seats(step, now)
        if not self._iterations.is_next_wanted():
            return plan
        attributes: Attributes = {
            "chairlift.step": step.number,
            "chairlift.decodes": step.num_decodes,
            "chairlift.prefill_tokens": sum(chunk.num_tokens for chunk in step.chunks),
        }
        traceparent = self._iterations.planned(step.number, self._riders(step), attributes, now)
        return msgspec.structs.replace(plan, traceparent=traceparent) if traceparent else plan

    def end_due(self) -> None:
        """Makes the spans of every request that has ended since the last time."""
        ended = [number for number, traced in self._open.items() if traced.story.request.ended_ns is not None]
        for number in ended:
            traced = self._open.pop(number)
            request = traced.story.request
            *passed, last = traced.story.phases(self._core.state.clock)
            arrival_ns = request.arrival_ns + traced.epoch_ns
            for phase in passed:
                self._make(traced.context, arrival_ns, traced.epoch_ns, phase)
            self._make(traced.context, arrival_ns, traced.epoch_ns, last, failure_of(request))

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self.end_due()
        self._iterations.close()
        self._tracing.close()

    def _note_result(self, message: device.StepDone, now: int) -> None:
        in_flight = self._core.state.in_flight
        if not in_flight or in_flight[0].number != message.step:
            return
        for chunk in in_flight[0].chunks:
            traced = self._open.get(chunk.sequence.request.number)
            if traced is not None and not chunk.sequence.is_ended:
                traced.story.note_chunk(chunk.sequence, message.step, chunk.num_tokens, now)
        attributes: Attributes = {
            "chairlift.device_ms": message.device_ns / 1e6,
            "chairlift.host_ms": message.host_ns / 1e6,
        }
        self._iterations.completed(message.step, attributes, now)

    def _note_seats(self, step: Step, now: int) -> None:
        preemptions = self._core.state.counters.preemptions
        if preemptions != self._preemptions:
            self._preemptions = preemptions
            for traced in self._open.values():
                traced.story.note_displaced("memory", now)
        for sequence in step.boarded:
            found = self._open.get(sequence.request.number)
            if found is not None:
                found.story.note_boarded(sequence, step.number, now)

    def _riders(self, step: Step) -> Iterator[SpanContext]:
        """Spans of the sampled requests that ride in the plan that was made last."""
        chunked = {chunk.sequence.request.number for chunk in step.chunks}
        for number, traced in self._open.items():
            rides = number in chunked or any(one.planned_at is not None for one in traced.story.request.sequences)
            if rides:
                yield get_current_span(traced.context).get_span_context()

    def _make(self, context: Context, arrival_ns: int, epoch_ns: int, phase: Phase, failure: str = "") -> None:
        start = arrival_ns + phase.start_ns
        span = self._tracing.tracer.start_span(phase.name, context, attributes=phase.attributes, start_time=start)
        for event in phase.events:
            span.add_event(event.name, event.attributes, event.at_ns + epoch_ns)
        if failure:
            span.set_attribute("error.type", failure)
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(arrival_ns + phase.end_ns)
