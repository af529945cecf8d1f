"""The simulated server: the real core under the real load generator, with costs that can be worked out by hand."""

import asyncio
from typing import Any

import msgspec
import pytest

from chairlift.ipc import device
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.experiment.conduct import conduct
from deploy.bench.experiment.definition import load_experiment
from deploy.bench.experiment.laboratory import SimulatedLaboratory
from deploy.bench.experiment.verdict import judge
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import TargetModel
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.record import Outcome
from deploy.bench.measure import Measurement
from deploy.bench.output.result import RunResult
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.replica import simulate
from deploy.bench.workload.lengths import LengthRange
from deploy.bench.workload.prompts import TokenIds
from deploy.bench.workload.synthetic import RandomWorkload

COST = DeviceCost(step_us=10_000, decode_row_us=1_000, prefill_token_us=100)
OVERLOADED = DeviceCost(step_us=40_000, decode_row_us=500, prefill_token_us=50)


def run(
    *overrides: str,
    number: int = 1,
    output: int = 11,
    abandon_share: float = 0.0,
    cost: DeviceCost = COST,
    **load: Any,
) -> RunResult:
    workload = RandomWorkload(
        name="fixed",
        ids=TokenIds(1),
        prompt=LengthRange(100, 100),
        output=LengthRange(output, output),
        abandon_share=abandon_share,
    )

    def prepare(model: TargetModel) -> Measurement:
        plan = LoadPlan(num_sessions=number, wants_ids=True, **load)
        return Measurement(backend="simulator", model=model, workload=workload, plan=plan)

    return simulate(load_settings(None, overrides, {}), cost, prepare)


def test_times_are_those_of_the_cost_model() -> None:
    """One prefill of 100 tokens: 10 + 10 ms. Then ten decodes of one row: 10 + 1 ms each."""
    (record,) = run().records
    assert record.outcome is Outcome.OK
    assert record.ttft_ms == pytest.approx(20.0, abs=1e-3)
    assert record.inter_token_ms() == pytest.approx([11.0] * 10, abs=1e-3)
    assert record.server.ttft_ms == pytest.approx(20.0, abs=1e-3)
    assert record.finish_reason == "LENGTH"


def test_requests_ride_together() -> None:
    """Four prompts in one step: 10 + 40 ms; then four rows a step: 14 ms."""
    result = run(number=4)
    assert [record.ttft_ms for record in result.records] == pytest.approx([50.0] * 4, abs=1e-3)
    assert result.records[3].inter_token_ms() == pytest.approx([14.0] * 10, abs=1e-3)
    assert result.server is not None
    assert result.server.output_tokens == 44


def test_the_core_learns_what_steps_cost_and_keeps_to_the_target_between_tokens() -> None:
    """Prompts of 100 tokens take 10 ms beside those who decode; 24 users with 40 outputs each meet many of them."""

    def longest_gaps(*overrides: str) -> float:
        result = run(*overrides, number=192, output=40, concurrency=24)
        assert all(record.outcome is Outcome.OK for record in result.records)
        return result.summarize(num_resamples=1).latencies["itl"].percentiles[99.0]

    free = longest_gaps()
    held = longest_gaps("scheduler.itl_target_ms=45")
    assert free > 60
    assert held <= 45.1


def test_at_five_times_what_it_sustains_a_replica_serves_as_many_in_time_as_at_its_best() -> None:
    """Riders of one length that boarded together leave together: by the mean rate of leaving too many were let in."""

    def goodput(rate: float) -> float:
        seats = ("scheduler.max_num_seqs=16", "scheduler.ttft_slo_ms=800", "scheduler.enable_prefix_caching=false")
        result = run(*seats, cost=OVERLOADED, number=int(rate * 30), output=32, arrivals=Arrivals(rate=rate))
        # What steps cost has to be learnt first.
        later = result.records[int(rate * 5) :]
        return sum(one.outcome is Outcome.OK and (one.ttft_ms or 0.0) <= 1000 for one in later) / 25

    assert goodput(40.0) > 0.9 * max(goodput(8.0), goodput(16.0))


def test_one_seat_serves_one_after_the_other() -> None:
    first, second = run("scheduler.max_num_seqs=1", "scheduler.overlap=false", number=2).records
    assert second.delta_ns[0] == pytest.approx(first.delta_ns[-1] + 20e6, abs=1e4)
    assert second.server.queue_ms == pytest.approx(130.0, abs=1e-3)


def test_a_client_that_goes_away_and_one_that_waits_too_long() -> None:
    gone = run(number=8, output=200, abandon_share=1.0)
    assert {record.outcome for record in gone.records} == {Outcome.ABANDONED}
    assert all(record.output_tokens < 200 for record in gone.records)
    (late,) = run(output=500, timeout_s=1.0).records
    assert (late.outcome, late.reason) == (Outcome.TIMED_OUT, "DEADLINE")


def test_the_same_run_twice_is_the_same_run() -> None:
    def strip(result: RunResult) -> RunResult:
        return msgspec.structs.replace(result, conditions=msgspec.structs.replace(result.conditions, date=""))

    assert strip(run(number=6, concurrency=2)) == strip(run(number=6, concurrency=2))


def test_continuous_batching_beats_static_on_the_simulator_with_the_same_tokens() -> None:
    experiment = load_experiment("static-vs-continuous")
    variants = tuple(
        msgspec.structs.replace(one, workload=msgspec.structs.replace(one.workload, num_requests=20))
        for one in experiment.variants
    )
    experiment = msgspec.structs.replace(experiment, variants=variants, repetitions=2)
    laboratory = SimulatedLaboratory(None, (), DeviceCost())
    report = judge(asyncio.run(conduct(experiment, laboratory)), is_simulated=True)
    assert report.same_tokens
    assert report.num_outputs_compared == 40
    figures = [variant.figures["median_e2el_ms"] for variant in report.variants]
    assert figures[1] < 0.9 * figures[0]


def test_swapping_takes_its_time_and_saves_the_computing() -> None:
    """A cache too small for its batch: what is copied need not be computed again, and each block copied costs."""
    tight = ("worker.kv_cache_bytes=20000000", "scheduler.max_num_seqs=8", "scheduler.enable_prefix_caching=false")
    outputs = {}
    for preemption in ("recompute", "swap"):
        outputs[preemption] = run(*tight, f"scheduler.preemption={preemption}", number=8, output=80)
    again, swapped = (outputs[one].summarize(num_resamples=1) for one in ("recompute", "swap"))
    assert again.preemptions > 0
    assert swapped.preemptions > 0
    assert swapped.duration < again.duration
    dear = msgspec.structs.replace(COST, swap_block_us=1_000_000)
    plan = device.Plan(worker_epoch=1, step=1, swap_out=pack_u32((1, 2, 3, 4)))
    assert dear.step_ns(plan) - COST.step_ns(plan) == 2 * (1_000_000 - 100) * 1_000


def test_a_quiet_tenant_does_not_wait_behind_one_that_floods() -> None:
    """The ready-made experiment on the policy, one repetition: the same tokens, and the quiet tenant's wait is gone."""
    experiment = load_experiment("policy")
    laboratory = SimulatedLaboratory(None, (), DeviceCost())
    runs = [asyncio.run(laboratory.run(experiment, variant, 0)) for variant in experiment.variants]
    assert [record.digest for record in runs[0].records] == [record.digest for record in runs[1].records]
    quiet = [run.summarize(num_resamples=1).tenants["quiet"]["ttft"].percentiles[50.0] for run in runs]
    assert quiet[1] < quiet[0] / 4
