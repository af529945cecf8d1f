"""The report on batching: its experiments on the simulator, and what it says of known figures."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from deploy.bench import batching_report
from deploy.bench.batching.parts import (
    SHAPES,
    Part,
    Sweep,
    SweepPoint,
    SweepRecipe,
    experiment_of,
    find_knee,
    run_part,
)
from deploy.bench.batching.recipe import find_part_differences, find_sweep_differences
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


def test_a_part_comes_back_from_its_file_and_is_known_by_what_it_was_made_with() -> None:
    """Parts are measured at different times, and those from before say at least some of it."""
    shape = next(one for one in SHAPES if one.name == "sparse")
    wanted = experiment_of(shape, 2)
    small = tuple(
        msgspec.structs.replace(one, workload=msgspec.structs.replace(one.workload, num_requests=3))
        for one in wanted.variants
    )
    wanted = msgspec.structs.replace(wanted, variants=small)
    laboratory = SimulatedLaboratory(None, (), DeviceCost())
    part = asyncio.run(run_part(wanted, laboratory, "e2el", is_simulated=True))
    page = render_markdown([part], None, None, None)
    assert "fresh simulated replica" in page
    assert "0.4 requests/s, 2 times the workload's own rate" in page
    assert "| p99 TTFT | median ITL | p99 ITL |" in page
    kept = msgspec.json.decode(msgspec.json.encode(part), type=Part)
    older = msgspec.structs.replace(kept, experiment=None)
    for one in (kept, older):
        assert find_part_differences(one, wanted, is_simulated=True) == []
        assert find_part_differences(one, wanted, is_simulated=False) == ["simulated True, now False"]
        more = msgspec.structs.replace(wanted, repetitions=3)
        assert find_part_differences(one, more, is_simulated=True) == ["repetitions 2, now 3"]
    assert find_part_differences(kept, experiment_of(shape, 2), is_simulated=True) == ["variants"]

    recipe = SweepRecipe(workload="sparse", users=(1, 2), requests_a_user=2, settings=())
    sweep = Sweep(points=[point(1, 10.5), point(2, 11)], conditions=part.conditions, recipe=recipe)
    kept_sweep = msgspec.json.decode(msgspec.json.encode(sweep), type=Sweep)
    for two in (kept_sweep, msgspec.structs.replace(kept_sweep, recipe=None)):
        assert find_sweep_differences(two, recipe) == []
        fewer = msgspec.structs.replace(recipe, users=(1,))
        assert find_sweep_differences(two, fewer) == ["users (1, 2), now (1,)"]


def test_a_kept_part_that_was_made_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["batching_report", str(tmp_path), "--parts", "1", "--simulate"])
    assert batching_report.main() == 0
    (path,) = (tmp_path / "data").iterdir()
    monkeypatch.setattr(sys, "argv", ["batching_report", str(tmp_path), "--parts", "0"])
    assert batching_report.main() == 2
    assert f"{path}: made otherwise (simulated True, now False)" in capsys.readouterr().err
    path.write_text("{}")
    assert batching_report.main() == 2
    assert "no part of this report" in capsys.readouterr().err
