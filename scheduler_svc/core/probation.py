"""Finding the sequence that makes a step fail, so that it ends alone and the batch goes on.

After a failed step its sequences are suspects. They run in groups, nobody else in the step: a group that gets through
is cleared, one that fails is cut in half, a single one that fails is the culprit. Newcomers of the failed step are
tested last, since the others have run before: a transient fault then costs two small steps, a poisoned newcomer too.
"""

from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence

MAX_FAILED_STEPS = 64
"""Failed steps in one episode before every remaining suspect counts as a culprit."""
MAX_FRUITLESS = 3
"""Episodes in a row that clear everyone, after each of which the next whole batch fails again."""


class Probation:
    """Groups of suspects; the last one runs next."""

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []
        self._num_failed = 0
        self._num_culprits = 0
        self._num_fruitless = 0

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
        if self._num_fruitless >= MAX_FRUITLESS:
            self._num_fruitless = 0
            return [max(suspects + newcomers, key=lambda one: (one.request.place, one.choice))]
        self._groups = [group for group in (newcomers, suspects) if group]
        return []

    def clear(self) -> None:
        """The device is another one: nobody is suspected."""
        self._groups = []
        self._num_fruitless = 0
