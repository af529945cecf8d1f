"""Finding the sequence that makes a step fail, so that it ends alone and the batch goes on.

After a failed step its sequences are suspects. They run in groups, nobody else in the step: a group that gets through
is cleared, one that fails is cut in half, a single one that fails is the culprit. Newcomers of the failed step are
tested last, since the others have run before: a transient fault then costs two small steps, a poisoned newcomer too.

A worker that dies takes its KV cache with it, so those who were in flight are not halved: that would cost a restart
each time. Who was in flight at two deaths in a row, and had not come past where the first one met it, runs alone until
it has; who is alone in flight at its third death is the culprit. Any other death costs nobody anything.
"""

from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence

MAX_FAILED_STEPS = 64
"""Failed steps in one episode before every remaining suspect counts as a culprit."""
MAX_DEATHS = 3
"""Deaths of a worker at one place of a sequence, the last with nobody else in flight: it is the culprit."""
MAX_FRUITLESS = 3
"""Episodes in a row that clear everyone, after each of which the next whole batch fails again."""


class Probation:
    """Groups of suspects; the last one runs next."""

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []
        self._num_failed = 0
        self._num_culprits = 0
        self._num_fruitless = 0
        self._is_deadly = False
        """Whether suspects run alone, and until they are past the place at which the worker died."""
        self._num_deaths: dict[Sequence, int] = {}
        self._reach: dict[Sequence, int] = {}
        """Tokens that a sequence must have computed to be past the place at which the worker died."""
        self._riders: list[tuple[Sequence, int, int]] = []
        """In flight when the worker was lost: each with the tokens computed, and those that plans covered."""

    @property
    def is_on(self) -> bool:
        """Whether suspects are left."""
        return bool(self._groups)

    def may_run(self, sequence: Sequence) -> bool:
        """Whether the next plan may have it."""
        return not self._groups or sequence in self._groups[-1]

    @property
    def under_test(self) -> list[Sequence]:
        """The group that runs next, alone."""
        return self._groups[-1]

    def prune(self) -> None:
        """Forgets suspects that have ended."""
        if not self._groups:
            return
        groups = ([suspect for suspect in group if not suspect.is_ended] for group in self._groups)
        self._groups = [group for group in groups if group]

    def skip_group(self) -> None:
        """The next group cannot run now (no memory): it goes back to the others, neither cleared nor guilty."""
        self._groups.pop()

    def passed(self) -> None:
        """A step got through."""
        if not self._groups:
            self._num_fruitless = 0
            return
        if self._is_deadly and not all(one.is_ended or self._is_past(one) for one in self._groups[-1]):
            return
        self._groups.pop()
        if not self._groups and self._num_culprits == 0:
            self._num_fruitless += 1

    def failed(self, suspects: Iterable[Sequence], newcomers: Iterable[Sequence]) -> list[Sequence]:
        """A step with these (older) suspects and newcomers failed. Returns those that are found guilty."""
        if not self._groups:
            return self._begin(list(suspects), list(newcomers))
        self._num_failed += 1
        group = self._groups.pop()
        alive = [suspect for suspect in group if not suspect.is_ended]
        if self._num_failed >= MAX_FAILED_STEPS:
            guilty = alive + [suspect for other in self._groups for suspect in other if not suspect.is_ended]
            self._groups = []
        elif len(group) == 1:
            guilty = alive
        else:
            half = len(alive) // 2
            self._groups += [part for part in (alive[half:], alive[:half]) if part]
            return []
        self._num_culprits += len(guilty)
        return guilty

    def _begin(self, suspects: list[Sequence], newcomers: list[Sequence]) -> list[Sequence]:
        self._num_failed = 1
        self._num_culprits = 0
        self._is_deadly = False
        if self._num_fruitless >= MAX_FRUITLESS:
            self._num_fruitless = 0
            return [max(suspects + newcomers, key=lambda one: (one.request.place, one.choice))]
        self._groups = [group for group in (newcomers, suspects) if group]
        return []

    def worker_lost(self, riders: Iterable[tuple[Sequence, int]]) -> None:
        """The worker is lost with these in flight, each with the tokens that plans covered; all have their results.

        Whether it died is known when the next one comes.
        """
        self._riders = [(one, _computed(one), scheduled) for one, scheduled in riders]
        self._num_failed = self._num_culprits = self._num_fruitless = 0
        if not self._is_deadly:
            self._groups = []

    def worker_came(self, is_another: bool) -> list[tuple[Sequence, int]]:
        """A worker is there again: another one, or the one that was out of reach.

        Returns who is found guilty of the death, and of how many.
        """
        riders, self._riders = self._riders, []
        if not is_another:
            return []
        under_test = self._groups[-1] if self._is_deadly and self._groups else []
        num_deaths, reach = self._num_deaths, self._reach
        self._num_deaths = {one: count for one, count in num_deaths.items() if not one.is_ended}
        self._reach = {one: tokens for one, tokens in reach.items() if not one.is_ended}
        suspects, guilty = [], []
        for one, computed, scheduled in riders:
            if one.is_ended:
                continue
            is_past = computed >= self._reach.get(one, 0)
            deaths = 1 if is_past or one not in self._num_deaths else self._num_deaths[one] + 1
            self._num_deaths[one] = deaths
            self._reach[one] = scheduled if deaths == 1 else max(scheduled, self._reach[one])
            if deaths >= MAX_DEATHS and len(under_test) == 1 and one is under_test[0]:
                guilty.append((one, deaths))
            elif deaths > 1:
                suspects.append(one)
        # Whoever came last runs first: the others had run for longer.
        suspects.sort(key=lambda one: (one.request.place, one.choice))
        self._groups = [[one] for one in suspects]
        self._is_deadly = bool(suspects)
        return guilty

    def _is_past(self, one: Sequence) -> bool:
        return _computed(one) >= self._reach.get(one, 0)


def _computed(one: Sequence) -> int:
    """What it knows it has computed once, but for the newest token and for a prompt that it is still at."""
    return one.num_known - 1 if one.outputs else one.computed
