"""What a collector gets by OTLP, over gRPC and over HTTP: spans, and metrics with exemplars."""

import contextlib
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.trace import set_span_in_context

from chairlift.runtime.metric_table import TIME_TO_FIRST_TOKEN
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.tracing import Tracing, open_tracing


class Sink:
    """Everything that arrived."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Any] = []
        self.metrics: list[Any] = []

    def take_traces(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def take_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            self.metrics += [metric for scope in resource.scope_metrics for metric in scope.metrics]


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:
        self._sink.take_traces(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:
        self._sink.take_metrics(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _grpc_sink() -> Iterator[Sink]:
    sink = Sink()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(sink), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(sink), server)
    sink.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield sink
    server.stop(None).wait()


def _http_sink() -> Iterator[Sink]:
    sink = Sink()

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                sink.take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            else:
                sink.take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        sink.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield sink
        server.shutdown()
        thread.join()


@pytest.fixture(params=["grpc", "http/protobuf"])
def sink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """One of each kind; the environment names it as an operator would."""
    for made in _grpc_sink() if request.param == "grpc" else _http_sink():
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
        yield made


def test_spans_and_exemplars_arrive(sink: Sink) -> None:
    tracing = open_tracing("gateway")
    assert isinstance(tracing, Tracing)
    metrics = ProcessMetrics("gateway")
    histogram = metrics.histogram(TIME_TO_FIRST_TOKEN)
    span = tracing.tracer.start_span("call", Context())
    labels = dict.fromkeys(TIME_TO_FIRST_TOKEN.labels, "x")
    histogram.record(0.2, labels, set_span_in_context(span, Context()))
    span.end()
    metrics.close()
    tracing.close()
    assert [one.name for one in sink.spans] == ["call"]
    (metric,) = [one for one in sink.metrics if one.name == TIME_TO_FIRST_TOKEN.name]
    (point,) = metric.histogram.data_points
    assert list(point.explicit_bounds) == list(TIME_TO_FIRST_TOKEN.boundaries)
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (sink.spans[0].trace_id, sink.spans[0].span_id)


def test_the_sampler_is_the_environments(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.1")
    tracing = open_tracing("gateway")
    assert tracing is not None
    for _ in range(2000):
        tracing.tracer.start_span("call", Context()).end()
    tracing.close()
    assert 100 < len(sink.spans) < 320


@pytest.fixture
def babbler(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Answers without end, as an endpoint that is somebody else's stream. Holds the bytes that each caller took."""
    taken: list[int] = []

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            taken.append(0)
            with contextlib.suppress(OSError):
                while taken[-1] < 1 << 28:
                    taken[-1] += self.wfile.write(bytes(1 << 20))

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        yield taken
        server.shutdown()
        thread.join()


def test_an_answer_without_end_is_not_read_to_its_end(babbler: list[int]) -> None:
    tracing = open_tracing("gateway")
    assert tracing is not None
    tracing.tracer.start_span("call", Context()).end()
    tracing.close()
    assert len(babbler) == 1
    assert babbler[0] < 1 << 26, "more than the system's own buffers hold was read"
    assert tracing.queue.exported() == 1
