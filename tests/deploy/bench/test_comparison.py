"""Differences and verdicts on runs whose true difference is known, and result files that go out and come back."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from deploy.bench.figures.comparison import METRICS, Better, Difference, Run, Verdict, compare_runs, metric_called
from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.statistics import Interval, welch_interval
from deploy.bench.figures.summary import summarize_run
from deploy.bench.load.client import TargetModel
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.observe.machine import describe_machine, describe_software
from deploy.bench.output.forest import WIDTH, find_undrawn, render_forest
from deploy.bench.output.html_report import render_report
from deploy.bench.output.result import (
    ResultError,
    RunConditions,
    RunResult,
    find_differences,
    read_result,
    to_json_fields,
    write_result,
)
from deploy.bench.output.table import format_run


def make_records(seed: int, *, ttft_ms: float, itl_ms: float, number: int = 60) -> list[RequestRecord]:
    """Requests with exponential first-token times and gaps, each with a level of its own."""
    random = numpy.random.Generator(numpy.random.PCG64(seed))
    records = []
    for at in range(number):
        one = RequestRecord(
            number=at, session=at, turn=0, wanted_tokens=20, intended_ns=at * 10_000_000, sent_ns=at * 10_000_000
        )
        now = one.intended_ns + int(random.exponential(ttft_ms) * 1e6)
        level = random.uniform(0.8, 1.2) * itl_ms
        for _ in range(20):
            one.take_delta(now, 1)
            now += int(random.exponential(level) * 1e6)
        one.prompt_tokens, one.ended_ns, one.outcome = 100, one.delta_ns[-1], Outcome.OK
        records.append(one)
    return records


def make_run(seed: int, **delays: Any) -> Run:
    records = make_records(seed, **delays)
    return Run(summarize_run(records, Objectives()), records)


def verdicts(differences: list[Difference]) -> dict[str, Verdict]:
    return {one.metric: one.verdict for one in differences}


def make_result(seed: int = 0, **changes: object) -> RunResult:
    conditions = RunConditions(
        date="2026-01-01T00:00:00+00:00",
        backend="chairlift",
        model=TargetModel(name="m", fingerprint="f", dtype="bfloat16"),
        workload="mixed",
        workload_details={"seed": 1},
        request_rate=2.0,
        burstiness=1.0,
        max_concurrency=None,
        num_warmups=4,
        objectives=Objectives(ttft_ms=100),
        machine=describe_machine(),
        software=describe_software(),
    )
    return RunResult(
        label="<a>",
        conditions=msgspec.structs.replace(conditions, **changes),
        records=make_records(seed, ttft_ms=50, itl_ms=10),
    )


def test_a_true_difference_is_found_and_an_absent_one_is_noise() -> None:
    slow = [make_run(seed, ttft_ms=100, itl_ms=20) for seed in range(4)]
    fast = [make_run(seed + 100, ttft_ms=100, itl_ms=10) for seed in range(4)]
    found = verdicts(compare_runs(slow, fast, are_paired=False))
    assert found["median_itl_ms"] is Verdict.BETTER
    assert found["p99_itl_ms"] is Verdict.BETTER
    assert found["output_throughput"] is Verdict.BETTER
    assert found["median_ttft_ms"] is Verdict.NOISE
    assert verdicts(compare_runs(fast, slow, are_paired=False))["median_itl_ms"] is Verdict.WORSE


def test_one_run_a_side_tells_chance_within_the_run_only() -> None:
    (difference,) = [
        one
        for one in compare_runs(
            [make_run(1, ttft_ms=50, itl_ms=20)], [make_run(2, ttft_ms=50, itl_ms=10)], are_paired=True
        )
        if one.metric == "median_itl_ms"
    ]
    assert difference.is_within_run
    assert difference.verdict is Verdict.BETTER
    assert difference.relative == pytest.approx(-0.5, abs=0.1)


def test_an_absent_difference_is_called_noise_as_often_as_the_interval_says() -> None:
    """150 comparisons of equal sides, 3 runs each: about 5 of 100 are called different."""
    random = numpy.random.Generator(numpy.random.PCG64(5))
    wrong = 0
    for _ in range(600):
        interval = welch_interval(random.normal(10, 1, 4).tolist(), random.normal(10, 1, 4).tolist())
        assert interval is not None
        wrong += interval.excludes_zero
    assert 10 <= wrong <= 50


def test_pairs_remove_what_both_sides_share() -> None:
    """Repetitions that differ by far more than the variants: paired the difference is found, unpaired it is not."""
    levels = (50.0, 100.0, 200.0, 400.0)
    ours = [make_run(seed, ttft_ms=1, itl_ms=level) for seed, level in enumerate(levels)]
    theirs = [make_run(seed, ttft_ms=1, itl_ms=level + 20) for seed, level in enumerate(levels)]
    assert verdicts(compare_runs(ours, theirs, are_paired=True))["median_itl_ms"] is Verdict.WORSE
    assert verdicts(compare_runs(ours, theirs, are_paired=False))["median_itl_ms"] is Verdict.NOISE


def test_tenants_are_compared_apart() -> None:
    """Half of the requests are the quiet tenant's, and only theirs become faster."""

    def run(seed: int, quiet_ttft_ms: float) -> Run:
        flooding = make_records(seed, ttft_ms=500, itl_ms=10, number=30)
        quiet = make_records(seed + 50, ttft_ms=quiet_ttft_ms, itl_ms=10, number=30)
        for records, tenant in ((flooding, "flooding"), (quiet, "quiet")):
            for record in records:
                record.tenant = tenant
        return Run(summarize_run([*flooding, *quiet], Objectives()), [*flooding, *quiet])

    slow = [run(seed, 500) for seed in range(4)]
    found = verdicts(compare_runs(slow, [run(seed, 50) for seed in range(4)], are_paired=True))
    assert found["quiet.median_ttft_ms"] is Verdict.BETTER
    assert found["flooding.median_ttft_ms"] is Verdict.NOISE
    one = {each.metric: each for each in compare_runs(slow[:1], [run(9, 50)], are_paired=False)}
    assert one["quiet.median_ttft_ms"].verdict is Verdict.BETTER
    assert one["quiet.median_ttft_ms"].theirs < 100 < one["flooding.median_ttft_ms"].theirs


@pytest.mark.parametrize(
    ("name", "is_known"),
    [("p99_ttft_ms", True), ("quiet.p99_ttft_ms", True), ("quiet.error_rate", False), ("p98_ttft_ms", False)],
)
def test_metrics_have_names(name: str, is_known: bool) -> None:
    found = metric_called(name)
    assert (found is not None) is is_known
    assert found is None or found.name == name


def test_metrics_are_fields_of_results() -> None:
    fields = make_run(1, ttft_ms=1, itl_ms=1).summary.to_fields()
    assert {metric.name for metric in METRICS if metric.latency != "queue"} <= fields.keys()


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    path, result = tmp_path / "r.json", make_result()
    write_result(path, result, result.summarize())
    assert read_result(path) == result
    assert read_result(path).summarize() == result.summarize()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "other/9"}'])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ResultError, match=r"r\.json"):
        read_result(path)


def test_conditions_that_differ_are_named() -> None:
    assert find_differences(make_result().conditions, make_result(date="later").conditions) == []
    other = make_result(
        request_rate=3.0,
        model=TargetModel(name="m", fingerprint="g", dtype="bfloat16"),
        settings={"scheduler.max_num_seqs": "8"},
    )
    assert find_differences(make_result().conditions, other.conditions) == [
        "request_rate: 2.0 against 3.0",
        "model.fingerprint: f against g",
        "scheduler.max_num_seqs: default against 8",
    ]


def test_reports_hold_every_figure_and_nothing_from_outside() -> None:
    result = make_result()
    summary = result.summarize()
    page = render_report("Title & more", [("<run>", result)], [summary], warnings=["<b>"])
    assert page.count("<svg") == 6
    assert "&lt;run&gt;" in page
    assert "<b>" not in page
    assert not any(part in page for part in ("<script", "<img", "<link", "src=", "url(", "@import"))
    text = format_run(result, summary)
    assert f"{summary.latencies['ttft'].percentiles[99.0]:.2f}" in text
    assert f"{summary.request_goodput:.3f}" in text
    assert b"p99_ttft_ms_ci" in msgspec.json.encode(to_json_fields(result, summary, with_details=False))


def test_differences_are_drawn_with_their_intervals() -> None:
    """What has no interval is named instead; one that reaches beyond the axis ends in an arrow, within the picture."""

    def difference(metric: str, low: float | None, high: float, verdict: Verdict) -> Difference:
        return Difference(
            metric=metric,
            better=Better.LOWER,
            ours=200.0,
            theirs=150.0,
            difference=-50.0,
            relative=-0.25,
            interval=None if low is None else Interval(low, high),
            is_within_run=False,
            verdict=verdict,
        )

    table = [
        difference("p99_ttft_ms", -80.0, -20.0, Verdict.BETTER),
        difference("p99_itl_ms", -90.0, 900.0, Verdict.NOISE),
        difference("error_rate", None, 0.0, Verdict.UNKNOWN),
        difference("preemptions", math.nan, math.nan, Verdict.UNKNOWN),
    ]
    picture = render_forest("<Differences>", table)
    assert "p99_ttft_ms: -25.0%, -40.0 % to -10.0 %: better" in picture
    assert picture.count("<circle") == 2
    assert "error_rate" not in picture
    assert "nan" not in picture
    assert find_undrawn(table) == ["error_rate", "preemptions"]
    assert all(0 <= float(x) <= WIDTH for x in re.findall(r"[MH](-?[0-9.]+)", picture))
    assert render_forest("", table[2:]) == ""
    page = render_report("Comparison", [], [], differences=[("Differences", table)])
    assert picture.replace("&lt;Differences&gt;", "Differences") in page
    assert "relative to: error_rate, preemptions." in page
