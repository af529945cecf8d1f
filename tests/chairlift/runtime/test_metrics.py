"""The table of metrics against what a scrape returns, and OTLP as the environment asks for it."""

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.runtime.metric_table import METRICS, PLAN_SIZE, REQUESTS, MetricKind, MetricSpec
from chairlift.runtime.metrics import ProcessMetrics
from chairlift.runtime.otlp import is_wanted, make_exporter, process_resource


@pytest.mark.parametrize("process", METRICS)
def test_a_scrape_has_the_names_units_labels_and_buckets_of_the_table(process: str) -> None:
    metrics = ProcessMetrics(process, environ={})
    for spec in METRICS[process]:
        labels = dict.fromkeys(spec.labels, "a")
        if spec.kind is MetricKind.HISTOGRAM:
            metrics.histogram(spec).record(0.5, labels)
        else:
            metrics.observe(spec, _constant(spec))
    scrape = metrics.exposition()
    metrics.close()
    families = {family.name: family for family in text_string_to_metric_families(scrape) if family.name != "target"}
    found = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
    assert found - {"target_info"} == {spec.exposed_name for spec in METRICS[process]}
    for spec in METRICS[process]:
        family = families[spec.exposed_name.removesuffix("_total")]
        assert (family.type, family.documentation) == (spec.kind, spec.description)
        assert {name for sample in family.samples for name in sample.labels} - {"le"} == {
            label.replace(".", "_") for label in spec.labels
        }
        bounds = [float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels]
        assert bounds == ([*spec.boundaries, float("inf")] if spec.boundaries else [])


def _constant(spec: MetricSpec) -> Any:
    return lambda: {"a": 1} if spec.labels else 1


def test_a_histogram_is_not_observed() -> None:
    metrics = ProcessMetrics("gateway", environ={})
    with pytest.raises(ValueError, match="is recorded"):
        metrics.observe(PLAN_SIZE, lambda: 1)
    metrics.close()


def test_two_processes_of_one_interpreter_share_nothing() -> None:
    first, second = ProcessMetrics("gateway", environ={}), ProcessMetrics("gateway", environ={})
    first.observe(REQUESTS, lambda: {"OK": 3})
    assert 'chairlift_gateway_requests_total{code="OK"} 3.0' in first.exposition()
    assert "chairlift_gateway_requests" not in second.exposition()
    first.close()
    second.close()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, False, False),
        (ENDPOINT, True, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False, False),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}, True, False),
    ],
)
def test_otlp_is_on_where_the_standard_variables_ask(environ: Mapping[str, str], traces: bool, metrics: bool) -> None:
    assert (is_wanted("traces", environ), is_wanted("metrics", environ)) == (traces, metrics)


@pytest.mark.parametrize(("protocol", "package"), [("http/protobuf", ".http."), ("grpc", ".grpc."), (None, ".http.")])
def test_the_protocol_chooses_the_exporter(protocol: str | None, package: str) -> None:
    chosen = {} if protocol is None else {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    exporter = make_exporter("traces", ENDPOINT | chosen)
    assert package in type(exporter).__module__
    exporter.shutdown()


def test_a_protocol_that_there_is_not_keeps_no_process_down(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_exporter("traces", ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}) is None
    assert "no OTLP protocol 'smoke'" in capsys.readouterr().out


def test_the_service_has_its_process_name_unless_the_environment_names_it() -> None:
    assert process_resource("gateway", {}).attributes["service.name"] == "chairlift-gateway"
    assert process_resource("gateway", {"OTEL_SERVICE_NAME": "x"}).attributes["service.name"] != "chairlift-gateway"
