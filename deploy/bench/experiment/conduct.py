"""Carries an experiment out: order, repetitions, and what the runs must have in common. Judges nothing."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from deploy.bench.experiment.definition import Experiment, Variant
from deploy.bench.experiment.laboratory import Laboratory
from deploy.bench.load.record import Outcome
from deploy.bench.output.result import RunResult

_FIGURES = re.compile(r"[0-9.]+")


class VariantRuns(msgspec.Struct, frozen=True):
    """All runs of one variant, by repetition."""

    variant: Variant
    runs: list[RunResult]


class Conducted(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment with its runs."""

    experiment: Experiment
    variants: list[VariantRuns]
    num_outputs_compared: int
    num_outputs_different: int
    """Outputs whose tokens differ between variants: where there are any, the variants did not do the same work."""
    problems: list[str]
    """Why the comparison may not be fair; empty where it is."""

    @property
    def is_deterministic(self) -> bool:
        """Whether every server promised that tokens do not depend on the batch: then other tokens are a fault."""
        return all(run.conditions.model.is_deterministic for side in self.variants for run in side.runs)


OnRun = Callable[[Variant, int, RunResult], None]


async def conduct(experiment: Experiment, laboratory: Laboratory, on_run: OnRun | None = None) -> Conducted:
    """Runs every repetition of every variant, in alternating order (ABBA), so that drift of the machine favours none.

    Raises what `Laboratory` raises.
    """
    for variant in experiment.variants:
        laboratory.check(variant)
    sides = [VariantRuns(variant, []) for variant in experiment.variants]
    for repetition in range(experiment.repetitions):
        for side in sides if repetition % 2 == 0 else reversed(sides):
            result = await laboratory.run(experiment, side.variant, repetition)
            side.runs.append(result)
            if on_run is not None:
                on_run(side.variant, repetition, result)
    num_compared, num_different = compare_outputs(sides)
    return Conducted(
        experiment=experiment,
        variants=sides,
        num_outputs_compared=num_compared,
        num_outputs_different=num_different,
        problems=find_problems(sides, num_compared, num_different),
    )


def compare_outputs(sides: Sequence[VariantRuns]) -> tuple[int, int]:
    """Outputs compared with the first variant's, request by request, and how many of them differ."""
    num_compared = num_different = 0
    base, others = sides[0], sides[1:]
    for other in others:
        for ours, theirs in zip(base.runs, other.runs, strict=True):
            expected = _digests(ours)
            for key, digest in _digests(theirs).items():
                if key in expected:
                    num_compared += 1
                    num_different += digest != expected[key]
    return num_compared, num_different


def find_problems(sides: Sequence[VariantRuns], num_compared: int, num_different: int) -> list[str]:
    """What makes the comparison unfair or its figures doubtful."""
    found: list[str] = []
    models = {run.conditions.model for side in sides for run in side.runs}
    if len(models) > 1:
        found.append("the runs were served by different models or precisions")
    if num_different:
        promised = all(model.is_deterministic for model in models)
        why = "although the server promises the same" if promised else "as the server is not deterministic"
        found.append(f"{num_different} of {num_compared} outputs have other tokens than the first variant's, {why}")
    if not num_compared:
        found.append("no output could be compared token by token")
    for side in sides:
        wrong = sum(record.outcome is not Outcome.OK for run in side.runs for record in run.records)
        if wrong:
            found.append(f"{side.variant.name}: {wrong} requests did not come to their full end")
    return found + _gather_warnings([run for side in sides for run in side.runs])


def _digests(run: RunResult) -> dict[tuple[int, int], str]:
    return {
        (record.session, record.turn): record.digest
        for record in run.records
        if record.digest and record.outcome is Outcome.OK
    }


def _gather_warnings(runs: Sequence[RunResult]) -> list[str]:
    """Warnings of all runs; one that differs in its figures only is told once, with the number of runs."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for warning in run.warnings:
            kinds[_FIGURES.sub("#", warning)].append(warning)
    return [f"{told[-1]} (in {len(told)} of {len(runs)} runs)" for told in kinds.values()]
