"""Telemetry of the whole stack as an operator sets it up: traces by OTLP to a collector, metrics by scraping."""

import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chairlift.runtime.metric_table import METRICS
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc

_CALLER = "2" * 16
_KV_BYTES = 208 * 23_040
"""Room for 208 tokens of the built-in model, 13 blocks."""
_GENERATE = "chairlift.v1.InferenceService/Generate"


class Collector:
    """Takes OTLP over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: dict[str, dict[str, tuple[str, Any]]] = {}
        """(service, span) by trace and name."""
        collector = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        assert b"SECRET" not in body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.setdefault(span.trace_id.hex(), {})[span.name] = (names["service.name"], span)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """One that every process started in this test reports to."""
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", made.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield made
    made.close()


def _trace(digit: str) -> dict[str, Any]:
    return {"metadata": (("traceparent", f"00-{digit * 32}-{_CALLER}-01"),), "timeout": 60}


def _request(max_tokens: int, **fields: Any) -> pb.GenerateRequest:
    stopping = pb.Stopping(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(text="SECRET", stopping=stopping, **fields)


def _end_in_every_way(target: str) -> None:
    """Requests a to d: success, refusal, cancellation, deadline."""
    with grpc.insecure_channel(target) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        assert len(list(stub.Generate(_request(4), **_trace("a")))) > 1
        running = stub.Generate(_request(190, request_id="one"), **_trace("c"))
        assert next(running).event.accepted.request_id == "one"
        refused = stub.Generate(_request(3, request_id="one"), **_trace("b"))
        assert refused.code() is grpc.StatusCode.ALREADY_EXISTS
        assert next(running).event.WhichOneof("event") == "delta"
        running.cancel()
        late = stub.Generate(_request(190), **(_trace("d") | {"timeout": 0.7}))
        with pytest.raises(grpc.RpcError):
            list(late)
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def _press_memory_and_kill_the_worker(target: str, worker_pid: int) -> None:
    """Requests e and f do not fit together; the worker dies under 9."""
    with grpc.insecure_channel(target) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        pair = [stub.Generate(_request(120), **_trace(digit)) for digit in "ef"]
        assert [len(list(stream)) > 1 for stream in pair] == [True, True]
        survivor = stub.Generate(_request(60), **_trace("9"))
        assert next(survivor).event.WhichOneof("event") == "accepted"
        assert next(survivor).event.WhichOneof("event") == "delta"
        os.kill(worker_pid, signal.SIGKILL)
        assert list(survivor)[-1].event.WhichOneof("event") == "finished"


def _scrape(log: str) -> dict[str, set[str]]:
    """Names that the processes of a stack expose, by process; their ports are read from the banner."""
    found = {}
    for address in re.findall(r"http://([0-9.:]+)/readyz", log):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            rows = [row.split() for row in answer.read().decode().splitlines() if row.startswith("# TYPE")]
        names = {row[2] for row in rows} - {"target_info"}
        found[next(name for name in METRICS if any(f"_{name}_" in each for each in names))] = names
    return found


_FAILURES = {"a": "", "b": "REQUEST_ID_IN_USE", "c": "CANCELLED", "d": "DEADLINE", "e": "", "f": "", "9": ""}
_PHASES = {digit: ["queue", "prefill", "decode"] for digit in "acdef9"} | {"b": ["queue"]}


def test_one_trace_a_request_and_a_scrape_a_process(serve: Callable[..., Any], collector: Collector) -> None:
    settings = ("scheduler.max_num_seqs=8", f"worker.kv_cache_bytes={_KV_BYTES}", "telemetry.iteration_span_share=1")
    stack = serve(*settings).wait_ready()
    _end_in_every_way(stack.listen)
    _press_memory_and_kill_the_worker(stack.listen, stack.children()["gpu_worker"])
    deadline = time.monotonic() + 60
    while any(len(collector.spans.get(digit * 32, {})) < 1 + len(_PHASES[digit]) for digit in _PHASES):
        assert time.monotonic() < deadline, {key: set(found) for key, found in collector.spans.items()}
        time.sleep(0.05)
    exposed = _scrape(stack.log())
    assert stack.stop() == 0, stack.log()
    assert exposed == {name: {spec.exposed_name for spec in METRICS[name]} for name in METRICS}
    _check_requests(collector)
    _check_iterations(collector)
    summaries = [json.loads(line) for line in stack.log().splitlines() if '"request_ended"' in line]
    assert {line["trace_id"][0]: line.get("reason", "") for line in summaries} == _FAILURES
    assert all(len(line["span_id"]) == 16 for line in summaries)
    assert "SECRET" not in stack.log()


def _check_requests(collector: Collector) -> None:
    for digit, failure in _FAILURES.items():
        spans = collector.spans[digit * 32]
        assert set(spans) == {_GENERATE, *_PHASES[digit]}
        service, root = spans[_GENERATE]
        assert (service, root.parent_span_id.hex(), root.status.message) == ("chairlift-gateway", _CALLER, failure)
        for name in _PHASES[digit]:
            service, span = spans[name]
            assert (service, span.parent_span_id) == ("chairlift-scheduler", root.span_id)
            assert span.status.message == (failure if name == _PHASES[digit][-1] else "")
    assert "chunk" in _events(collector, "a", "prefill")
    assert "first_token" in _events(collector, "a", "decode")
    pressed = _events(collector, "e", "decode") + _events(collector, "f", "decode")
    assert pressed.count("preemption") == pressed.count("resume") > 0
    assert {"preemption", "resume"} <= set(_events(collector, "9", "decode"))


def _events(collector: Collector, digit: str, name: str) -> list[str]:
    return [event.name for event in collector.spans[digit * 32][name][1].events]


def _check_iterations(collector: Collector) -> None:
    """Traces of their own: linked to the requests that rode, with the worker's step below."""
    requests = {digit * 32 for digit in _FAILURES}
    others = {trace: spans for trace, spans in collector.spans.items() if trace not in requests}
    assert all(set(spans) <= {"iteration", "step"} for spans in others.values())
    whole = [spans for spans in others.values() if len(spans) == 2]
    assert len(whole) > 100
    for spans in whole:
        (scheduler, iteration), (worker, step) = spans["iteration"], spans["step"]
        assert (scheduler, worker) == ("chairlift-scheduler", "chairlift-worker")
        assert step.parent_span_id == iteration.span_id
        assert {link.trace_id.hex() for link in iteration.links} <= requests
    most = max(len(spans["iteration"][1].links) for spans in whole)
    assert most == 2, "two rode together"
