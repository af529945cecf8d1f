"""What a scrape of a worker tells: each plan under what became of it."""

import urllib.request
from typing import Any

from chairlift.ipc import device
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.metric_table import WORKER, MetricKind

_P = "chairlift_worker_"


def _scrape(worker: Any) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.service.probe_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith(("#", "target_info"))]
    return {series: float(value) for series, _, value in lines}


def test_steps_are_counted_and_measured(new_scheduler: Any, new_worker: Any, until: Any) -> None:
    worker = new_worker()
    idle = _scrape(worker)
    exposed = {series.partition("{")[0] for series in idle}
    assert exposed == {spec.exposed_name for spec in WORKER if spec.kind is not MetricKind.HISTOGRAM}
    assert set(idle.values()) == {0.0}
    scheduler = new_scheduler()
    epoch = scheduler.greet().worker_epoch
    row = device.BoardedRow(0, pack_u32([5, 9, 14, 3]), 4, 0, pack_u32([2]), 0, SamplingParams(temperature=0))
    scheduler.send(device.Plan(epoch, 1, True, boarded=(row,), chunks=pack_u32([0, 4])))
    scheduler.send(device.Plan(epoch, 2, decode=pack_u32([0])))
    for _ in range(2):
        scheduler.receive(device.StepDone)
    scheduler.send(device.Plan(epoch, 3, decode=pack_u32([3])))
    scheduler.receive(device.StepFailed)
    scheduler.send(device.Plan(epoch, 9, decode=pack_u32([0])))
    until(lambda: _scrape(worker)[f"{_P}plans_refused_total"] == 1, "the plan that did not follow is counted")
    scheduler.send(device.Plan(epoch + 1, 10, decode=pack_u32([0])))
    until(lambda: _scrape(worker)[f"{_P}plans_foreign_total"] == 1, "the plan for another life is counted")
    found = _scrape(worker)
    assert found[f"{_P}plans_refused_total"] == 1
    assert (found[f"{_P}steps_total"], found[f"{_P}steps_failed_total"]) == (2, 1)
    assert (found[f"{_P}plan_size_count"], found[f"{_P}plan_size_sum"]) == (2, 5)
    for part in ("device", "host"):
        series = f'{_P}step_duration_seconds_count{{part="{part}"}}'
        assert found[series] == 2
