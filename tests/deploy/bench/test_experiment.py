"""Experiments: what is refused, the order of the runs, the check of tokens, the claim."""

import asyncio

import msgspec
import pytest

from deploy.bench.errors import BenchUsageError
from deploy.bench.experiment.conduct import conduct
from deploy.bench.experiment.definition import (
    Experiment,
    ExperimentError,
    Variant,
    load_experiment,
    parse_experiment,
    ready_made,
)
from deploy.bench.experiment.laboratory import OwnStackLaboratory, draw_workload, plan_load
from deploy.bench.experiment.verdict import judge
from deploy.bench.figures.slo import Objectives
from deploy.bench.load.client import TargetModel
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.observe.machine import describe_machine, describe_software
from deploy.bench.output.result import RunConditions, RunResult

TEXT = """
question = "Does it matter?"
primary = "median_ttft_ms"
repetitions = 4
[workload]
num_requests = 30
[settings]
"scheduler.max_num_seqs" = 8
[[variant]]
name = "a"
[[variant]]
name = "b"
set = { "scheduler.max_num_seqs" = 16 }
"""


class ScriptedLaboratory:
    """Runs nothing: first tokens after a delay by variant, and outputs that may differ."""

    def __init__(self, *, faster: float = 1.0, differs: bool = False, model_of_b: str = "m") -> None:
        self.order: list[tuple[str, int]] = []
        self.faster = faster
        self.differs = differs
        self.model_of_b = model_of_b

    def check(self, variant: Variant) -> None:
        pass

    async def run(self, experiment: Experiment, variant: Variant, repetition: int) -> RunResult:
        self.order.append((variant.name, repetition))
        is_b = variant.name == "b"
        records = []
        for number in range(variant.workload.num_requests):
            one = RequestRecord(number=number, session=number, turn=0, wanted_tokens=2, intended_ns=0)
            delay_ms = (100 + number + 5 * repetition) / (self.faster if is_b else 1.0)
            one.take_delta(round(delay_ms * 1e6), 1)
            one.take_delta(round(delay_ms * 1e6) + 10_000_000, 1)
            one.ended_ns, one.outcome = one.delta_ns[-1], Outcome.OK
            one.digest = "other" if is_b and self.differs and number == 3 else f"{repetition}-{number}"
            records.append(one)
        conditions = RunConditions(
            date="",
            backend="scripted",
            model=TargetModel(name=self.model_of_b if is_b else "m"),
            workload="",
            workload_details={},
            request_rate=None,
            burstiness=None,
            max_concurrency=None,
            num_warmups=0,
            objectives=Objectives(),
            machine=describe_machine(),
            software=describe_software(),
        )
        return RunResult(conditions=conditions, records=records)


def test_variants_may_differ_in_one_variable_only() -> None:
    two = TEXT.replace('"scheduler.max_num_seqs" = 16', '"scheduler.max_num_seqs" = 16, "load.rate" = 3.0')
    with pytest.raises(ExperimentError, match=r"differ in load\.rate, scheduler\.max_num_seqs"):
        parse_experiment("x", two)
    allowed = parse_experiment("x", two, allows_several_variables=True)
    assert allowed.variables == ("load.rate", "scheduler.max_num_seqs")
    assert parse_experiment("x", TEXT).variables == ("scheduler.max_num_seqs",)


def test_a_value_that_is_set_to_what_it_was_is_no_difference() -> None:
    with pytest.raises(ExperimentError, match="do not differ"):
        parse_experiment("x", TEXT.replace("= 16", "= 8"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"median_ttft_ms"', '"speed"', "is no metric"),
        ('name = "b"', 'name = "a"', "name of its own"),
        ("num_requests = 30", "num_requests = 0", "num_requests"),
        ("num_requests = 30", "requests = 30", "requests"),
        ('"scheduler.max_num_seqs" = 16', '"load.rates" = 16', "variant b"),
        ("question =", "question", "x:"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        parse_experiment("x", TEXT.replace(old, new))


def test_an_unknown_name_tells_those_that_are_ready_made() -> None:
    with pytest.raises(BenchUsageError, match="static-vs-continuous"):
        load_experiment("statc")


@pytest.mark.parametrize("name", ready_made())
def test_ready_made_experiments_are_sound(name: str) -> None:
    """One variable each, settings that exist, a workload that does."""
    experiment = load_experiment(name)
    assert len(experiment.variables) == 1
    for variant in experiment.variants:
        OwnStackLaboratory(None, ()).check(variant)
        assert next(draw_workload(variant, TargetModel(name=""), 0).sessions()).turns


def test_every_variant_gets_the_same_requests_and_each_repetition_others() -> None:
    a, b = parse_experiment("x", TEXT).variants
    model = TargetModel(name="")
    draws = [next(draw_workload(one, model, repetition).sessions()) for one in (a, b) for repetition in (0, 1)]
    assert draws[0] == draws[2]
    assert draws[1] == draws[3]
    assert draws[0] != draws[1]
    assert plan_load(a, 0).wants_ids


def test_the_order_alternates_so_that_drift_favours_none() -> None:
    laboratory = ScriptedLaboratory()
    asyncio.run(conduct(parse_experiment("x", TEXT), laboratory))
    assert "".join(name for name, _ in laboratory.order) == "abbaabba"
    assert [repetition for _, repetition in laboratory.order] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_difference_is_claimed_for_the_primary_metric() -> None:
    conducted = asyncio.run(conduct(parse_experiment("x", TEXT), ScriptedLaboratory(faster=2.0)))
    report = judge(conducted, is_simulated=False)
    assert report.same_tokens
    assert report.num_outputs_compared == 120
    assert report.problems == []
    (comparison,) = report.comparisons
    assert comparison.claim.startswith("b is better than a in median_ttft_ms")
    assert "(-50.0%)" in comparison.claim
    assert msgspec.json.encode(report)


def test_equal_variants_are_not_told_apart() -> None:
    report = judge(asyncio.run(conduct(parse_experiment("x", TEXT), ScriptedLaboratory())), is_simulated=False)
    assert report.comparisons[0].claim.startswith("b and a are not distinguishable in median_ttft_ms")


def test_other_tokens_or_another_model_make_it_unfair() -> None:
    conducted = asyncio.run(conduct(parse_experiment("x", TEXT), ScriptedLaboratory(differs=True, model_of_b="other")))
    report = judge(conducted, is_simulated=False)
    assert not report.same_tokens
    assert report.problems == [
        "the runs were served by different models or precisions",
        "4 of 120 outputs have other tokens than the first variant's, as the server is not deterministic",
    ]
