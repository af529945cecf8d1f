"""What a sampled request's spans tell of its ride, and the spans of the iterations that it rode in."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from chairlift.ipc import device, front
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.process import StopSignal
from chairlift.runtime.settings import Settings
from chairlift.runtime.tracing import Tracing
from scheduler_svc.iteration_spans import MAX_LINKS, IterationSpans
from scheduler_svc.service import SchedulerService

New = Callable[..., Any]
_SMALL = device.Geometry("tiny", "f00d", 1000, 256, (2,), 16, 6, 0, 8, 256, 1024, "float32")


class Traced:
    """A scheduler that samples every iteration, in a thread."""

    def __init__(self, settings: Settings, **knobs: Any) -> None:
        replace = msgspec.structs.replace
        own = replace(
            settings,
            scheduler=replace(settings.scheduler, **knobs),
            telemetry=replace(settings.telemetry, iteration_span_share=1.0),
        )
        self._exporter = InMemorySpanExporter()
        self._service = SchedulerService(own, Tracing("scheduler", self._exporter, environ={}))
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self._service.run, args=(self._stop,))
        self._thread.start()

    def finish(self) -> dict[str, list[ReadableSpan]]:
        """Ends it; its spans by name, in order."""
        self._stop.request()
        self._thread.join(30)
        self._service.close()
        self._stop.close()
        found: dict[str, list[ReadableSpan]] = {}
        for span in sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0):
            found.setdefault(span.name, []).append(span)
        return found


def _parent(digit: str, flags: str = "01") -> str:
    return f"00-{digit * 32}-{digit * 16}-{flags}"


def _events(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in span.events if event.name == name]


@pytest.fixture
def traced(settings: Settings) -> Callable[..., Traced]:
    return lambda **knobs: Traced(settings, **knobs)


def _greet(new_gateway: New, new_worker: New, geometry: device.Geometry | None = None) -> tuple[Any, Any]:
    """A gateway and a worker that the scheduler has taken in."""
    gateway, worker = new_gateway(), new_worker()
    worker.join(geometry)
    gateway.greet()
    gateway.receive(front.SchedulerHello)
    return gateway, worker


def test_chunks_are_events_of_prefill_and_iterations_link_who_rode(
    traced: Callable[..., Traced], new_gateway: New, new_worker: New
) -> None:
    scheduler = traced(max_num_batched_tokens=16)
    gateway, worker = _greet(new_gateway, new_worker)
    gateway.submit(256, traceparent=_parent("1"), prompt=pack_u32(list(range(3, 43))), max_tokens=2)
    plans = [worker.step() for _ in range(4)]
    gateway.receive(front.Finished)
    spans = scheduler.finish()
    (prefill,), (decode,) = spans["prefill"], spans["decode"]
    chunks = [(chunk["step"], chunk["tokens"]) for chunk in _events(prefill, "chunk")]
    assert chunks == [(plans[0].step, 16), (plans[1].step, 16), (plans[2].step, 8)]
    assert [event.name for event in decode.events] == ["first_token"]
    iterations = spans["iteration"]
    assert [span.attributes["chairlift.step"] for span in iterations if span.attributes] == [p.step for p in plans]
    for span, plan in zip(iterations, plans, strict=True):
        (link,) = span.links
        assert f"{link.context.trace_id:032x}" == "1" * 32
        assert span.parent is None
        assert plan.traceparent.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")
        assert span.status.status_code is StatusCode.UNSET


def test_preemption_and_resume_are_events_of_decode(
    traced: Callable[..., Traced], new_gateway: New, new_worker: New
) -> None:
    scheduler = traced()
    gateway, worker = _greet(new_gateway, new_worker, _SMALL)
    for number, digit in ((1, "1"), (2, "2")):
        gateway.submit(256 * number, traceparent=_parent(digit), max_tokens=60)
    ended = 0
    while ended < 2:
        worker.answer_next(20)
        while gateway.socket.poll(0):
            ended += isinstance(gateway.receive(), front.Finished)
    decodes = scheduler.finish()["decode"]
    told = [[event.name for event in span.events if event.name in ("preemption", "resume")] for span in decodes]
    assert ["preemption", "resume"] in [names[:2] for names in told]
    preempted = next(span for span, names in zip(decodes, told, strict=True) if names)
    assert _events(preempted, "preemption")[0] == {"cause": "memory", "swapped": False, "choice": 0}


def test_a_lost_worker_ends_the_iteration_and_shows_in_the_request(
    traced: Callable[..., Traced], new_gateway: New, new_worker: New
) -> None:
    scheduler = traced()
    gateway, worker = _greet(new_gateway, new_worker)
    gateway.submit(256, traceparent=_parent("1"), max_tokens=4)
    worker.step()
    worker.receive(device.Plan)
    worker.send(device.WorkerBye(worker.epoch))
    gateway.await_load(lambda load: load.worker_epoch == 0, "a beat that tells of the loss")
    second = new_worker(epoch=8, name=b"worker-1")
    second.join()
    has_ended = False
    while not has_ended:
        second.answer_next(20)
        while gateway.socket.poll(0):
            has_ended = has_ended or isinstance(gateway.receive(), front.Finished)
    spans = scheduler.finish()
    assert "WORKER_LOST" in [span.status.description for span in spans["iteration"]]
    (decode,) = spans["decode"]
    assert [event["cause"] for event in _events(decode, "preemption")] == ["worker_lost"]
    assert len(_events(decode, "resume")) == 1
    assert decode.status.status_code is StatusCode.UNSET


def test_an_iteration_whose_result_the_process_does_not_await_has_its_span(
    traced: Callable[..., Traced], new_gateway: New, new_worker: New
) -> None:
    """The worker's span of that step would have no parent."""
    scheduler = traced()
    gateway, worker = _greet(new_gateway, new_worker)
    gateway.submit(256, traceparent=_parent("1"))
    plans = [worker.receive(device.Plan) for _ in range(2)]
    gateway.send(front.Detach(256))
    gateway.await_load(lambda load: load.running == 0, "a beat without the request")
    iterations = scheduler.finish()["iteration"]
    assert [span.attributes["chairlift.step"] for span in iterations if span.attributes] == [p.step for p in plans]
    assert {span.status.description for span in iterations} == {"SHUTDOWN"}


def test_links_and_open_spans_are_bounded() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing("scheduler", exporter, environ={})
    iterations = IterationSpans(tracing, 1.0)
    context = SpanContext(1, 2, is_remote=True)
    for step in range(10):
        iterations.planned(step, (context for _ in range(1000)), {}, step)
    tracing.close()
    spans = exporter.get_finished_spans()
    assert len(spans) == 6
    assert {len(span.links) for span in spans} == {MAX_LINKS}
    assert {span.status.description for span in spans} == {"LOST"}


def test_the_share_of_iterations_is_kept() -> None:
    tracing = Tracing("scheduler", InMemorySpanExporter(), environ={})
    for share, expected in ((0.0, 0), (0.1, 11), (1.0, 101)):
        iterations = IterationSpans(tracing, share)
        assert abs(sum(iterations.is_next_wanted() for _ in range(100)) - expected) <= 1
    tracing.close()
