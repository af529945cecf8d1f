"""The report on batching: its experiments on the simulator, and what it says of known figures."""

import asyncio

import msgspec

from deploy.bench.batching.parts import SHAPES, Sweep, SweepPoint, experiment_of, find_knee, run_part
from deploy.bench.batching.render import chart_name, render_markdown, sweep_charts
from deploy.bench.experiment.laboratory import SimulatedLaboratory
from deploy.bench.output.svg import render_chart_file
from deploy.bench.simulate.device_cost import DeviceCost


def point(users: int, output_throughput: float) -> SweepPoint:
    return SweepPoint(
        users=users,
        output_throughput=output_throughput,
        median_ttft_ms=10.0 * users,
        p99_ttft_ms=20.0 * users,
        median_itl_ms=5.0,
        p99_itl_ms=9.0,
        kv_used_share_max=0.25,
        preemptions=0,
    )


def test_the_knee_is_where_more_users_give_no_more_tokens() -> None:
    assert find_knee([point(1, 10), point(2, 20), point(4, 30), point(8, 31), point(16, 60)]) == 4
    assert find_knee([point(1, 10), point(2, 20)]) is None


def test_the_report_claims_a_gain_where_there_is_one_and_none_where_requests_never_meet() -> None:
    chosen = [shape for shape in SHAPES if shape.name in ("mixed, low concurrency", "sparse")]
    laboratory = SimulatedLaboratory(None, (), DeviceCost())
    parts = [asyncio.run(run_part(experiment_of(shape, 3), laboratory, "e2el", is_simulated=True)) for shape in chosen]
    assert all(part.report.same_tokens for part in parts)
    sweep = Sweep(points=[point(1, 10), point(2, 12), point(4, 12)], conditions=parts[0].conditions)
    page = render_markdown(parts, parts[0], sweep, "[scheduler]\nmax_num_seqs = 4\n")
    assert "Continuous batching is better in: mixed, low concurrency.\nNo difference can be told in: sparse." in page
    assert "The knee is at 2 users" in page
    assert "max_num_seqs = 4" in page
    for chart in [*parts[0].charts, *sweep_charts(sweep)]:
        assert f"]({chart_name(chart)})" in page
        assert render_chart_file(chart).startswith("<svg ")
        assert "<style>" in render_chart_file(chart)


def test_a_part_comes_back_from_its_file() -> None:
    """Parts are measured at different times."""
    sweep_of = [point(1, 10.5)]
    assert msgspec.json.decode(msgspec.json.encode(sweep_of), type=list[SweepPoint]) == sweep_of
