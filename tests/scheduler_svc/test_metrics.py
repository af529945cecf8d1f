"""What a scrape of a scheduler tells: zero when idle, the core's counts when not."""

import time
import urllib.request
from collections.abc import Callable
from typing import Any

from chairlift.ipc import front
from chairlift.runtime.metric_table import SCHEDULER
from scheduler_svc.metrics import SchedulerMetrics

New = Callable[..., Any]
_P = "chairlift_scheduler_"


def _values(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith(("#", "target_info"))]
    return {series: float(value) for series, _, value in lines}


def _until(port: int, series: str, value: float) -> dict[str, float]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = _values(answer.read().decode())
        if found[series] == value:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{series} is {found[series]}, not {value}")


def test_counts_of_the_core_are_scraped(start: New, new_gateway: New, new_worker: New) -> None:
    service, _, _ = start()
    idle = _until(service.probe_port, f"{_P}steps_total", 0)
    assert {series.partition("{")[0] for series in idle} == {spec.exposed_name for spec in SCHEDULER}
    idle.pop(f"{_P}loop_busy_seconds_total")
    assert idle.pop(f"{_P}config_revision") == 1
    assert set(idle.values()) == {0.0}
    gateway, worker = new_gateway(), new_worker()
    worker.greet()
    gateway.greet()
    gateway.submit(256)
    gateway.submit(512, prompt=b"")
    worker.step()
    gateway.receive(front.Deltas)
    running = _until(service.probe_port, f"{_P}running", 1)
    assert (running[f"{_P}kv_blocks_used"], running[f"{_P}kv_blocks_limit"]) == (1, 64)
    assert running[f"{_P}kv_usage"] == 1 / 64
    for _ in range(3):
        worker.step()
    gateway.receive(front.Finished)
    ended = _until(service.probe_port, f"{_P}requests_ended_total", 1)
    names = ("running", "waiting", "gateways", "requests_accepted_total", "requests_refused_total")
    assert [ended[f"{_P}{name}"] for name in names] == [0, 0, 1, 1, 1]
    assert (ended[f"{_P}tokens_prompt_total"], ended[f"{_P}tokens_output_total"]) == (3, 4)


def test_every_field_of_the_report_that_counts_something_is_a_metric() -> None:
    metrics = SchedulerMetrics()
    metrics.latest = front.Load(**{name: number for number, name in enumerate(front.Load.__struct_fields__, 1)})
    told = set(_values(metrics.exposition()).values())
    metrics.close()
    named = {getattr(metrics.latest, name) for name in front.Load.__struct_fields__ if name != "worker_epoch"}
    assert named <= told
