"""A real Prometheus scrapes a real stack, evaluates the shipped rules and answers every query of the dashboard."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc
from deploy.observability.answers import ask, ask_panels

_RULES = Path(__file__).resolve().parents[2] / "deploy" / "observability" / "prometheus" / "rules.yaml"
PROMPT = "Once upon a time"
"""A token a byte."""
_MAY_BE_SILENT = {"Objectives: share missed in an hour"}
"""Ratios over longer than this test lasts."""


class Prometheus:
    """One that scrapes twice a second."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        rules = yaml.safe_load(_RULES.read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        jobs = [{"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()]
        config = {"global": {"scrape_interval": "500ms"}, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.url = f"http://{address}"
        self._log = (folder / "prometheus.log").open("wb")
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        self._process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=self._log, stderr=subprocess.STDOUT
        )

    def until(self, expression: str, value: float) -> None:
        """Returns once the sum of an expression's values is `value`."""
        deadline = time.monotonic() + 60
        found: tuple[tuple[str, float], ...] = ()
        while time.monotonic() < deadline:
            try:
                found = ask(self.url, expression)
            except OSError:
                found = ()
            if found and _sum(found) == value:
                return
            time.sleep(0.2)
        raise AssertionError(f"{expression} is {found}, not {value}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def stack(serve: Callable[..., Any], tiny_model: Path) -> Any:
    return serve(f"model.source={tiny_model}", "scheduler.max_num_seqs=4").wait_ready()


@pytest.fixture
def prometheus(stack: Any, tmp_path: Path) -> Iterator[Prometheus]:
    targets = dict(re.findall(r"(gateway|scheduler|worker) http://([0-9.:]+)/readyz", stack.log()))
    made = Prometheus(tmp_path, targets)
    yield made
    made.close()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
def test_prometheus_sees_idle_work_and_every_end(stack: Any, prometheus: Prometheus) -> None:
    prometheus.until("up", 3)
    for gauge in ("chairlift_scheduler_running", "chairlift_scheduler_waiting", "chairlift_gateway_streams"):
        prometheus.until(gauge, 0)
    with grpc.insecure_channel(stack.listen) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        stopping = pb.Stopping(max_tokens=24, ignore_eos=True)
        # A distribution shows from its first measurement on: rates need one scrape before most of the work.
        assert list(stub.Generate(pb.GenerateRequest(text=PROMPT, stopping=stopping)))
        prometheus.until("gen_ai_server_request_duration_seconds_count", 1)
        prometheus.until("chairlift_worker_plan_size_count > bool 0", 1)
        streams = [stub.Generate(pb.GenerateRequest(text=PROMPT, stopping=stopping)) for _ in range(8)]
        assert all(list(stream) for stream in streams)
        refused = stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(top_p=7)))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        prometheus.until('chairlift_gateway_requests_total{code="OK"}', 9)
        prometheus.until('chairlift_gateway_requests_total{code="INVALID_ARGUMENT"}', 1)
        prometheus.until('chairlift_gateway_refusals_total{reason="INVALID_REQUEST"}', 1)
        prometheus.until("chairlift_scheduler_tokens_output_total", 9 * 24)
        prometheus.until("gen_ai_server_time_to_first_token_seconds_count", 9)
        prometheus.until("gen_ai_server_request_duration_seconds_count", 10)
        prometheus.until(
            'chairlift_scheduler_tenant_service_total{tenant="default"}', 9 * 24 + 9 * len(PROMPT) - _cached(prometheus)
        )
    for gauge in ("chairlift_scheduler_running", "chairlift_scheduler_kv_blocks_used"):
        prometheus.until(gauge, 0)
    assert _silent_panels(prometheus) <= _MAY_BE_SILENT
    recorded = ask(prometheus.url, '{__name__=~"chairlift:.*"}')
    assert len(recorded) >= 4


def _silent_panels(prometheus: Prometheus) -> set[str]:
    """Those without an answer; rules are evaluated each second, so that what they record comes after the scrape."""
    deadline = time.monotonic() + 30
    while True:
        silent = {answer.panel for answer in ask_panels(prometheus.url) if not answer.values}
        if silent <= _MAY_BE_SILENT or time.monotonic() > deadline:
            return silent
        time.sleep(0.5)


def _cached(prometheus: Prometheus) -> float:
    return _sum(ask(prometheus.url, "chairlift_scheduler_tokens_cached_total"))


def _sum(values: tuple[tuple[str, float], ...]) -> float:
    return sum(value for _, value in values)
