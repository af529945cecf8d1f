"""What tracing costs: pairs in turn, and what is made of them."""

import pytest

from deploy.bench.stand_in import Script, start_stand_in
from deploy.bench.tracing import Target, TracingError, TracingPlan, describe, measure_sitting, summarize_pairs


class _Scripted(Target, frozen=True):
    """Its processes' clocks show what the script says."""

    readings: list[float]

    def cpu_s(self) -> float:
        return self.readings.pop(0)


@pytest.mark.parametrize("drive_traced_first", [False, True])
async def test_a_sitting_counts_tokens_and_cpu_time_of_both(drive_traced_first: bool) -> None:
    plain_server, plain_address = await start_stand_in(Script())
    traced_server, traced_address = await start_stand_in(Script())
    plain = _Scripted(plain_address, (), [1.0, 1.25, 2.0, 2.25, 3.0, 3.25])
    traced = _Scripted(traced_address, (), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
    plan = TracingPlan(runs=3, requests=4, output_tokens=20)
    costs = await measure_sitting(plan, plain, traced, drive_traced_first=drive_traced_first)
    await plain_server.stop(None)
    await traced_server.stop(None)
    assert costs == pytest.approx((0.25 / 80, 0.5 / 80))
    assert plain.readings == traced.readings == []


def test_the_overhead_is_the_mean_of_the_pairs_with_its_interval() -> None:
    costs = [(1e-3, 1.01e-3), (1e-3, 1.00e-3), (1e-3, 1.02e-3), (1e-3, 1.01e-3)]
    cost = summarize_pairs(TracingPlan(pairs=4), costs, num_exports=3)
    assert cost.overhead.low < 0.01 < cost.overhead.high < 0.03
    assert (round(cost.us_per_token_without), round(cost.us_per_token_with)) == (1000, 1010)
    assert "overhead +1.00%" in describe(cost)


def test_one_pair_has_no_interval() -> None:
    with pytest.raises(TracingError, match="two pairs"):
        summarize_pairs(TracingPlan(pairs=1), [(1e-3, 1e-3)], num_exports=1)
