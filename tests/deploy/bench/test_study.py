"""The scheduler's report, its loads and device files, and the core's benchmark: whole, on small sizes."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from deploy.bench import scheduler
from deploy.bench.beside.measure_vllm import measure_vllm_scheduler
from deploy.bench.errors import BenchError
from deploy.bench.study.load import FLOOD, StudyLoad
from deploy.bench.study.model_cost import ModelCost, read_model_cost
from deploy.bench.study.report import write_report
from deploy.bench.study.speed import describe_speed
from deploy.cli import commands
from deploy.cli.subcommands import build_parser, load_command
from scheduler_svc.sim.simulator import SimulatedHardware

_FIGURES = {"median_us": 10.0, "mean_us": 11.0, "p99_us": 20.0}
_SPEED = {
    "steady": {"64": _FIGURES, "256": _FIGURES, "1024": _FIGURES},
    "waiting_10000": {"64": _FIGURES},
    "churn": {"64": _FIGURES},
    "submit_us": 50.0,
    "submit_hashing_us": 20.0,
    "bytes_per_waiting": 1500,
    "vllm": {"version": "0.0", "steady": {"64": {"median_us": 700.0}}, "waiting_10000": {"64": {"median_us": 700.0}}},
}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{at:02d}.1680590,{100 + 31 * at},{1 + at}" for at in range(24)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return str(path)


def test_the_report_has_every_comparison_and_its_commands_are_understood(tmp_path: Path, trace: str) -> None:
    path = write_report(tmp_path, trace, 16, _SPEED, {"cpu_s": 1.0, "wall_s": 2.0, "max_rss_mib": 3.0}, "")
    text = path.read_text()
    for title in ("Static against continuous", "Whole prefill", "inter-token latency", "fair shares", "swapping"):
        assert title in text
    plots = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(plots) == 9
    assert all((tmp_path / plot).read_text().startswith("<svg") for plot in plots)
    lines = re.findall(r"^chairlift simulate .*$", text, re.MULTILINE)
    assert len(lines) > 15
    command = load_command(commands, "simulate")
    assert command is not None
    for line in lines:
        arguments = build_parser(command, "chairlift simulate").parse_args(shlex.split(line)[2:])
        if arguments.model_cost is not None:
            assert read_model_cost(tmp_path / arguments.model_cost) != SimulatedHardware()
    assert "| steady | 64 | 10 | 700 | 70 × |" in text
    assert "PYTHON_OF" in "\n".join(describe_speed(_SPEED))


def test_the_default_device_is_the_simulators() -> None:
    assert ModelCost().hardware() == SimulatedHardware()


def test_a_flood_lasts_as_long_as_the_others_send() -> None:
    load = StudyLoad(source="poisson", num_requests=50, rate=5.0, num_tenants=2, flood_rate=20.0)
    arrivals = list(load.arrivals())
    flood = [one for one in arrivals if one.tenant == FLOOD]
    others = [one for one in arrivals if one.tenant != FLOOD]
    assert len(others) == 50
    assert {one.tenant for one in others} == {"tenant-1", "tenant-2"}
    assert len(flood) == pytest.approx(20 * others[-1].at_ns / 1e9, abs=1)
    assert [one.at_ns for one in arrivals] == sorted(one.at_ns for one in arrivals)
    assert arrivals == list(load.arrivals())


def test_the_cores_benchmark_has_the_promised_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "RUNNING", (8,))
    result = scheduler.run(num_steps=20, num_rounds=1, num_waiting=50)
    for name in ("steady", "steady_aligned", "steady_recorded", "waiting_10000", "mixed_prefill", "churn"):
        assert {"median_us", "p99_us"} <= set(result[name]["8"])
    assert result["submit_us"] > 0
    assert 0 < result["bytes_per_waiting"] < 4096
    assert "a waiting request" in scheduler.table(result)


def test_an_environment_without_vllm_is_told() -> None:
    with pytest.raises(BenchError, match="No module named 'vllm'"):
        measure_vllm_scheduler(Path(sys.executable), 1, [8])
    with pytest.raises(BenchError, match="no-such-python"):
        measure_vllm_scheduler(Path("no-such-python"), 1, [8])
