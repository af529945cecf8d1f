"""Carries a search out: runs what it asks for, keeps the journal, and at the end proves the choice by repetition."""

from collections.abc import Callable

import msgspec

from deploy.bench.figures.comparison import Difference, Run, compare_runs
from deploy.bench.output.result import RunConditions, RunResult
from deploy.bench.tune.journal import Journal
from deploy.bench.tune.plant import Plant
from deploy.bench.tune.search import Bounds, Ladder, Outcome, Phase, next_setting
from deploy.bench.tune.trial import Setting, SettingRefusedError, Trial, TuneObjectives, judge_trial, refused_trial

OnTrial = Callable[[Trial, Phase], None]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen knobs against those of the start, under the same load, in alternating order."""

    start: Setting
    chosen: Setting
    differences: list[Difference]
    problems: tuple[str, ...] = ()
    """Why a repetition's figures are not its setting's; empty where all are."""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    outcome: Outcome
    confirmation: Confirmation | None
    """None where nothing was moved, or no repetition was asked for."""
    conditions: RunConditions | None
    """Of the last run, in this sitting or by the journal; None where nothing ever ran."""


async def tune(
    plant: Plant,
    ladders: list[Ladder],
    bounds: Bounds,
    objectives: TuneObjectives,
    journal: Journal,
    repetitions: int,
    on_trial: OnTrial,
) -> Tuned:
    """Searches until it ends. Raises what the plant raises; the journal then holds what was done.

    A setting that is refused is a trial too, and not within the objectives; that of the baseline ends the search.
    """
    while not isinstance(step := next_setting(ladders, bounds, journal.trials), Outcome):
        setting, phase = step
        conditions: RunConditions | None = None
        try:
            run = await plant.run(setting, 0)
            conditions = run.result.conditions
            trial = judge_trial(setting, run, objectives)
        except SettingRefusedError as error:
            if phase == "baseline":
                raise
            trial = refused_trial(setting, str(error))
        journal.add(trial, conditions)
        on_trial(trial, phase)
    return Tuned(
        outcome=step,
        confirmation=await _confirm(plant, ladders, step, repetitions),
        conditions=journal.conditions,
    )


async def _confirm(plant: Plant, ladders: list[Ladder], outcome: Outcome, repetitions: int) -> Confirmation | None:
    start_knobs = {ladder.name: ladder.start for ladder in ladders}
    if outcome.best is None or outcome.best.setting.knobs == start_knobs or not repetitions:
        return None
    chosen = outcome.best.setting
    start = Setting(knobs=start_knobs, concurrency=chosen.concurrency)
    ours: list[RunResult] = []
    theirs: list[RunResult] = []
    problems: list[str] = []
    for repetition in range(1, repetitions + 1):
        sides = [(start, ours), (chosen, theirs)]
        for setting, runs in sides if repetition % 2 else reversed(sides):
            run = await plant.run(setting, repetition)
            runs.append(run.result)
            problems += run.violations
    differences = compare_runs(
        [Run(one.summarize(), one.records) for one in ours],
        [Run(one.summarize(), one.records) for one in theirs],
        are_paired=len(ours) > 1,
    )
    return Confirmation(start=start, chosen=chosen, differences=differences, problems=tuple(dict.fromkeys(problems)))
