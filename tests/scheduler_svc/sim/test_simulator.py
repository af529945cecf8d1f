"""The real core in virtual time: what pacing, prediction and refusal by time are worth, and that runs repeat."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.cost_model import StepCosts
from scheduler_svc.sim import workload
from scheduler_svc.sim.histogram import Histogram
from scheduler_svc.sim.outcome import Objective, Outcome, Report
from scheduler_svc.sim.simulator import SimulatedHardware, Simulator
from scheduler_svc.sim.traces import TraceError, read_trace
from scheduler_svc.sim.workload import Arrival, PromptMaker

MS = 1_000_000
HARDWARE = SimulatedHardware(
    costs=StepCosts(fixed=4e6, decode_row=50_000.0, prefill_token=40_000.0, kv_token=2.0),
    num_blocks=4000,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)


def simulate(arrivals: Any, hardware: SimulatedHardware = HARDWARE, **knobs: Any) -> Report:
    outcome = Outcome(Objective())
    simulator = Simulator(SchedulingConfig(**knobs), hardware, outcome)
    return outcome.report(simulator.run(iter(arrivals)))


def conversation(count: int = 150, rate: float = 6.0, seed: int = 1) -> list[Arrival]:
    return list(workload.poisson(rate, count, seed))


def test_every_request_ends_and_runs_repeat_exactly() -> None:
    one, other = simulate(conversation()), simulate(conversation())
    assert one == other
    assert one.requests == 150
    assert one.output_tokens_per_s * one.duration_s == pytest.approx(sum(each.output_len for each in conversation()))
    assert one.kv_peak <= 1


def test_itl_target_keeps_running_streams_pace() -> None:
    """Long prompts come in among running streams: without a target, each of their chunks is a stall for all."""
    arrivals = conversation(rate=8.0)
    free, paced = simulate(arrivals), simulate(arrivals, itl_target_ns=25 * MS)
    assert free.itl_ms.p99 > 60
    assert paced.itl_ms.p99 < 25 * 1.1
    assert paced.output_tokens_per_s > 0.7 * free.output_tokens_per_s


def test_the_target_holds_although_the_device_stutters() -> None:
    class Stuttering(Simulator):
        """Every 50th step takes 10 times as long."""

        def _step_ns(self, shape: Any) -> int:
            self.count = getattr(self, "count", 0) + 1
            return super()._step_ns(shape) * (10 if self.count % 50 == 0 else 1)

    outcome = Outcome(Objective())
    simulator = Stuttering(SchedulingConfig(itl_target_ns=25 * MS), HARDWARE, outcome)
    report = outcome.report(simulator.run(iter(conversation(rate=8.0))))
    assert report.itl_ms.p90 < 25 * 1.15


def test_predictions_of_the_first_token_are_good_when_idle_and_when_crowded() -> None:
    for rate, count, worst in ((2.0, 200, 0.1), (12.0, 600, 0.5)):
        report = simulate(conversation(count, rate))
        print("rate", rate, "mean relative error", report.prediction_error, "ttft", report.ttft_ms.p50)
        assert report.prediction_error < worst


def test_a_time_objective_refuses_what_would_miss_it_and_keeps_goodput() -> None:
    """At several times what the device sustains, queueing everyone makes nearly everyone late."""
    arrivals = conversation(count=700, rate=30.0)
    queueing, refusing = simulate(arrivals), simulate(arrivals, ttft_slo_ns=1000 * MS)
    assert queueing.goodput_share < 0.2
    assert refusing.refused > 150
    assert refusing.goodput_per_s > 3 * queueing.goodput_per_s
    assert refusing.ttft_ms.p90 < 1500


def test_fair_shares_serve_a_quiet_tenant_in_a_flood() -> None:
    flood = workload.poisson(30.0, 400, 2, tenant="flood")
    quiet = workload.poisson(0.5, 10, 3, tenant="quiet")
    arrivals = list(workload.merged(flood, quiet))
    fcfs, fair = simulate(arrivals), simulate(arrivals, policy="fair")
    assert fair.tenants["quiet"].mean_ttft_ms < fcfs.tenants["quiet"].mean_ttft_ms / 5
    assert fair.output_tokens_per_s > 0.95 * fcfs.output_tokens_per_s


def test_continuous_batching_beats_static_in_throughput() -> None:
    arrivals = conversation(count=200, rate=1000.0)
    continuous, static = simulate(arrivals), simulate(arrivals, batching="static")
    assert continuous.output_tokens_per_s > 1.3 * static.output_tokens_per_s


def test_equal_contents_are_shared() -> None:
    arrivals = [Arrival(i * 500 * MS, 1100, 20, contents=(1, 2, 100 + i)) for i in range(20)]
    report = simulate(arrivals)
    assert report.cached_share == pytest.approx(19 * 1024 / (20 * 1100), abs=0.01)


@pytest.mark.parametrize(("blocks", "host_blocks"), [(4000, 0), (600, 0), (600, 2000)])
def test_every_gap_between_two_tokens_is_counted_once_also_those_of_lost_seats(blocks: int, host_blocks: int) -> None:
    """A stream's gaps sum to its time from the first token to the last, whatever happened in between."""
    hardware = msgspec.structs.replace(HARDWARE, num_blocks=blocks, num_host_blocks=host_blocks)
    outcome = Outcome(Objective())
    arrivals = conversation(count=150, rate=20.0)
    report = outcome.report(Simulator(SchedulingConfig(preemption="swap"), hardware, outcome).run(iter(arrivals)))
    assert report.requests == 150
    assert (report.preemptions > 0) == (blocks == 600)
    assert outcome.itl.count == sum(arrival.output_len - 1 for arrival in arrivals)
    assert outcome.itl.total == outcome.e2e.total - outcome.ttft.total
    if blocks == 600:
        assert report.itl_ms.max > 1000


def test_memory_pressure_preempts_and_all_finish() -> None:
    hardware = msgspec.structs.replace(HARDWARE, num_blocks=600)
    report = simulate(conversation(count=150, rate=20.0), hardware)
    assert report.preemptions > 0
    assert report.requests + report.refused == 150
    assert report.kv_peak > 0.95


# ---- workloads and traces ----


def test_prompts_are_equal_where_contents_are() -> None:
    maker = PromptMaker(0)
    one, other = maker.make(Arrival(0, 600, 1, contents=(7, 8))), maker.make(Arrival(0, 1500, 1, contents=(7, 9)))
    assert len(one) == 2400
    assert one[:2048] == other[:2048]
    assert one[2048:2400] != other[2048:2400]
    assert maker.make(Arrival(0, 10, 1)) != maker.make(Arrival(0, 10, 1))


def test_generated_loads_have_their_rate() -> None:
    for make in (workload.poisson, workload.burst):
        arrivals = list(make(50.0, 6400, 1))
        assert arrivals[-1].at_ns == pytest.approx(6400 / 50 * 1e9, rel=0.25)
        assert [arrival.at_ns for arrival in arrivals] == sorted(arrival.at_ns for arrival in arrivals)


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_trace_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "conv.csv"
    trace.write_text(f"{HEADER}2023-11-16 18:15:46.6805900,374,44\n", encoding="utf-8-sig")
    assert list(read_trace(trace)) == [Arrival(0, 374, 44)]


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "conv.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n"
    )
    assert list(read_trace(trace, rate_scale=2.0)) == [Arrival(0, 374, 44), Arrival(2_157_289_500, 396, 1)]


def test_a_mooncake_trace_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "conversation.jsonl"
    trace.write_text('{"timestamp": 40, "input_length": 600, "output_length": 5, "hash_ids": [46, 9], "other": 1}\n')
    assert list(read_trace(trace)) == [Arrival(40 * MS, 600, 5, contents=(46, 9))]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "WHEN,WHAT\n1,2\n", "needs the columns"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,many,2\n", "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46\n", "line 2"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp"', "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        ("a.csv", f"{HEADER}2023-11-16 18:15:46,1,2\n2023-11-16 18:15:46+00:00,1,2\n", "line 3"),
        ("a.csv", f"{HEADER}2023-11-16 18:15:46,1,2\n9999-11-16 18:15:46,1,2\n", "line 3"),
        ("a.csv", f"{HEADER}2023-11-16 18:15:46,1,2\n\udcff", "after line"),
        ("a.csv", f"{HEADER}{'1' * 200_000},1,2\n", "after line"),
        ("a.jsonl", "", "no request"),
        ("a.jsonl", '{"timestamp": 1e300, "input_length": 2, "output_length": 3}\n', "line 1"),
        ("a.jsonl", '{"timestamp": -1, "input_length": 2, "output_length": 3}\n', "line 1"),
        ("a.txt", "", "a trace is"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_its_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    trace = tmp_path / name
    trace.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(TraceError, match=line) as found:
        list(read_trace(trace))
    assert str(trace) in str(found.value)


def test_the_histogram_is_within_a_percent() -> None:
    histogram = Histogram()
    for value in range(1, 10_001):
        histogram.add(value * 1000)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert histogram.quantile(share) == pytest.approx(share * 10_000_000, rel=0.011)
    assert histogram.mean == pytest.approx(5_000_500)
    assert Histogram().quantile(0.5) == 0


def test_traces_may_be_read_in_part() -> None:
    assert len(list(itertools.islice(workload.poisson(1.0, 10**9, 0), 5))) == 5
