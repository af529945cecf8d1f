"""The search: what to try next, given all that was tried. Pure and deterministic, so that it resumes from its log.

First the load is doubled from one user on with the knobs as they are, until an objective is left or more load gives no
more throughput (the knee), and the border is halved once. Then each knob is moved from the best point, in both
directions, as far as a server runs with it: along its ladder under the least load that was too much, where what it
makes room for shows, until that is within the objectives or moves away from them; and, where that gave nothing, one
rung under the same load, where a gain is easily mistaken for noise. After a knob helped, more load is tried again, and
the others once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from deploy.bench.tune.trial import KnobValue, Setting, Trial

MIN_GAIN = 0.03
"""Less than this is not worth a change, and near the noise of one run."""

Phase = Literal["baseline", "load", "knob"]


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a knob may take, ascending, within the user's bounds."""

    name: str
    values: tuple[int | float, ...]
    start: KnobValue
    """Its value as things are; None: the server's choice."""
    default: KnobValue = None
    """What the server's choice comes to; None: not known, and then it is taken to stand in the middle."""

    def neighbours(self, value: KnobValue) -> tuple[int | float | None, int | float | None]:
        """The rungs next below and above; of None, those next to `default`."""
        value = self.default if value is None else value
        if value is None:
            middle = len(self.values) // 2
            return (self.values[middle - 1] if middle else None), (self.values[middle] if self.values else None)
        below = [one for one in self.values if one < value]
        above = [one for one in self.values if one > value]
        return (below[-1] if below else None), (above[0] if above else None)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the search ended."""

    best: Trial | None
    """None: not even one user was within the objectives."""
    baseline: Trial | None
    reason: str


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Where the search must end."""

    max_concurrency: int = 256
    max_trials: int = 32


def next_setting(
    ladders: Sequence[Ladder], bounds: Bounds, log: Mapping[tuple[object, ...], Trial]
) -> tuple[Setting, Phase] | Outcome:
    """What to try next, or how the search ended. `log` holds every trial by its setting's key."""
    search = _Search(ladders, bounds, log)
    wanted = next(search.steps(), None)
    if wanted is None:
        return Outcome(best=search.best, baseline=search.baseline, reason=search.reason)
    if len(log) >= bounds.max_trials:
        return Outcome(best=search.best, baseline=search.baseline, reason=f"{bounds.max_trials} trials were run")
    return wanted


class _Search:
    """Walks through the log as the search did, and stops where it needs a trial that is not there."""

    def __init__(self, ladders: Sequence[Ladder], bounds: Bounds, log: Mapping[tuple[object, ...], Trial]) -> None:
        self._ladders = ladders
        self._bounds = bounds
        self._log = log
        self.best: Trial | None = None
        self.baseline: Trial | None = None
        self.reason = ""
        self._too_much: int | None = None
        """The least load that left the objectives with the knobs of `best`."""

    def steps(self) -> Iterator[tuple[Setting, Phase]]:
        """Yields a setting that is not in the log; must not be resumed then."""
        knobs: dict[str, KnobValue] = {ladder.name: ladder.start for ladder in self._ladders}
        first = Setting(knobs=knobs, concurrency=1)
        if (trial := self._find(first)) is None:
            yield first, "baseline"
            return
        self.baseline = trial
        if not trial.is_feasible:
            self.reason = f"one user alone leaves the objectives: {', '.join(trial.violations)}"
            return
        self.best = trial
        yield from self._raise_load(knobs)
        improved = True
        while improved:
            improved = False
            for ladder in self._ladders:
                before = self.best
                yield from self._move(ladder)
                if self.best is not before:
                    improved = True
                    yield from self._raise_load(self.best.setting.knobs)
        self.reason = "no knob and no load gives more within the objectives"

    def _raise_load(self, knobs: dict[str, KnobValue]) -> Iterator[tuple[Setting, Phase]]:
        assert self.best is not None
        good, last = self.best.setting.concurrency, self.best
        self._too_much = None
        while (concurrency := good * 2) <= self._bounds.max_concurrency:
            setting = Setting(knobs=knobs, concurrency=concurrency)
            if (trial := self._find(setting)) is None:
                yield setting, "load"
                return
            if not trial.is_feasible:
                self._too_much = concurrency
                yield from self._halve(knobs, good, concurrency)
                return
            has_gained = trial.output_throughput > last.output_throughput * (1 + MIN_GAIN)
            self._take_if_better(trial)
            if not has_gained:
                return
            good, last = concurrency, trial

    def _halve(self, knobs: dict[str, KnobValue], good: int, bad: int) -> Iterator[tuple[Setting, Phase]]:
        middle = (good + bad) // 2
        if middle in (good, bad):
            return
        setting = Setting(knobs=knobs, concurrency=middle)
        if (trial := self._find(setting)) is None:
            yield setting, "load"
            return
        if not trial.is_feasible:
            self._too_much = middle
        self._take_if_better(trial)

    def _move(self, ladder: Ladder) -> Iterator[tuple[Setting, Phase]]:
        assert self.best is not None
        for direction in (0, 1):
            before = None
            while self.best is not before:
                before = self.best
                yield from self._walk_under_more_load(ladder, direction)
                if self.best is before:
                    yield from self._try_same_load(ladder, direction)

    def _try_same_load(self, ladder: Ladder, direction: int) -> Iterator[tuple[Setting, Phase]]:
        assert self.best is not None
        at = self.best.setting
        value = self._next_value(ladder, at.knobs, direction)
        if value is None:
            return
        setting = Setting(knobs={**at.knobs, ladder.name: value}, concurrency=at.concurrency)
        if (trial := self._find(setting)) is None:
            yield setting, "knob"
            return
        self._take_if_better(trial)

    def _walk_under_more_load(self, ladder: Ladder, direction: int) -> Iterator[tuple[Setting, Phase]]:
        assert self.best is not None
        at, excess = self.best.setting, float("inf")
        concurrency = self._too_much or 0
        if concurrency <= at.concurrency:
            concurrency = min(at.concurrency * 2, self._bounds.max_concurrency)
        knobs = at.knobs
        while (value := self._next_value(ladder, knobs, direction)) is not None:
            knobs = {**knobs, ladder.name: value}
            setting = Setting(knobs=knobs, concurrency=concurrency)
            if (trial := self._find(setting)) is None:
                yield setting, "knob"
                return
            self._take_if_better(trial)
            if trial.is_feasible or trial.is_refused or trial.excess > excess * (1 + MIN_GAIN):
                return
            excess = trial.excess

    def _next_value(self, ladder: Ladder, knobs: dict[str, KnobValue], direction: int) -> int | float | None:
        """The next rung; None where there is none, or a server with it cannot run: then none beyond it can."""
        value = ladder.neighbours(knobs[ladder.name])[direction]
        wanted = {**knobs, ladder.name: value}
        if value is None or self._starves_seats(wanted) or self._was_refused(wanted):
            return None
        return value

    def _starves_seats(self, knobs: dict[str, KnobValue]) -> bool:
        """Whether an iteration has fewer tokens than sequences, which decode a token each."""
        chosen = {ladder.name: ladder.default for ladder in self._ladders}
        seats, tokens = (
            chosen.get(name) if knobs.get(name) is None else knobs[name]
            for name in ("max_num_seqs", "max_num_batched_tokens")
        )
        return seats is not None and tokens is not None and tokens < seats

    def _was_refused(self, knobs: dict[str, KnobValue]) -> bool:
        """Whether none of its trials ran. One that did keeps it in: the walk through the log must not change."""
        refused = [trial.is_refused for trial in self._log.values() if trial.setting.knobs == knobs]
        return bool(refused) and all(refused)

    def _find(self, setting: Setting) -> Trial | None:
        return self._log.get(setting.key())

    def _take_if_better(self, trial: Trial) -> None:
        assert self.best is not None
        if trial.is_feasible and trial.output_throughput > self.best.output_throughput * (1 + MIN_GAIN):
            self.best = trial
