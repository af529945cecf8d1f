"""What tracing costs: pairs in turn, and what is made of them."""

import os

import pytest

from deploy.bench.stand_in import Script, start_stand_in
from deploy.bench.tracing import Target, TracingError, TracingPlan, describe, measure_pairs, summarize_pairs


async def test_pairs_count_tokens_and_cpu_time_of_both() -> None:
    plain, plain_address = await start_stand_in(Script())
    traced, traced_address = await start_stand_in(Script())
    plan = TracingPlan(pairs=3, requests=4, output_tokens=200)
    own = (os.getpid(),)
    costs = await measure_pairs(plan, Target(plain_address, own), Target(traced_address, own))
    await plain.stop(None)
    await traced.stop(None)
    assert len(costs) == 3
    # A clock tick is 10 ms: a run of 800 tokens may show none, or some.
    assert all(0 <= cost < 0.01 for pair in costs for cost in pair)


def test_the_overhead_is_the_mean_of_the_pairs_with_its_interval() -> None:
    costs = [(1e-3, 1.01e-3), (1e-3, 1.00e-3), (1e-3, 1.02e-3), (1e-3, 1.01e-3)]
    cost = summarize_pairs(TracingPlan(pairs=4), costs, num_exports=3)
    assert cost.overhead.low < 0.01 < cost.overhead.high < 0.03
    assert (round(cost.us_per_token_without), round(cost.us_per_token_with)) == (1000, 1010)
    assert "overhead +1.00%" in describe(cost)


def test_one_pair_has_no_interval() -> None:
    with pytest.raises(TracingError, match="two pairs"):
        summarize_pairs(TracingPlan(pairs=1), [(1e-3, 1e-3)], num_exports=1)
