"""Carries a search out: runs what it asks for, keeps the journal, and at the end proves the choice by repetition."""

from collections.abc import Callable

import msgspec

from deploy.bench.figures.comparison import Difference, Run, compare_runs
from deploy.bench.output.result import RunConditions, RunResult
from deploy.bench.tune.journal import Journal
from deploy.bench.tune.plant import Plant
from deploy.bench.tune.search import Bounds, Ladder, Outcome, Phase, next_setting
from deploy.bench.tune.trial import Setting, Trial, TuneObjectives, judge_trial

OnTrial = Callable[[Trial, Phase], None]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen knobs against those of the start, under the same load, in alternating order."""

    start: Setting
    chosen: Setting
    differences: list[Difference]


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    outcome: Outcome
    confirmation: Confirmation | None
    """None where nothing was moved, or no repetition was asked for."""
    conditions: RunConditions | None
    """Of the last run; None where every trial came from the journal."""


async def tune(
    plant: Plant,
    ladders: list[Ladder],
    bounds: Bounds,
    objectives: TuneObjectives,
    journal: Journal,
    repetitions: int,
    on_trial: OnTrial,
) -> Tuned:
    """Searches until it ends. Raises what the plant raises; the journal then holds what was done."""
    conditions: RunConditions | None = None
    while not isinstance(step := next_setting(ladders, bounds, journal.trials), Outcome):
        setting, phase = step
        result = await plant.run(setting, 0)
        conditions = result.conditions
        trial = judge_trial(setting, result, objectives)
        journal.add(trial)
        on_trial(trial, phase)
    return Tuned(
        outcome=step,
        confirmation=await _confirm(plant, ladders, step, repetitions),
        conditions=conditions,
    )


async def _confirm(plant: Plant, ladders: list[Ladder], outcome: Outcome, repetitions: int) -> Confirmation | None:
    start_knobs = {ladder.name: ladder.start for ladder in ladders}
    if outcome.best is None or outcome.best.setting.knobs == start_knobs or not repetitions:
        return None
    chosen = outcome.best.setting
    start = Setting(knobs=start_knobs, concurrency=chosen.concurrency)
    ours: list[RunResult] = []
    theirs: list[RunResult] = []
    for repetition in range(1, repetitions + 1):
        sides = [(start, ours), (chosen, theirs)]
        for setting, runs in sides if repetition % 2 else reversed(sides):
            runs.append(await plant.run(setting, repetition))
    differences = compare_runs(
        [Run(one.summarize(), one.records) for one in ours],
        [Run(one.summarize(), one.records) for one in theirs],
        are_paired=len(ours) > 1,
    )
    return Confirmation(start=start, chosen=chosen, differences=differences)
