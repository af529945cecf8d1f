"""Revisions of the knobs: numbered, kept, and what a guard is. Values only; `reconfigure` holds the rules."""

import enum

import msgspec

from scheduler_svc.core.config import SchedulingConfig

MAX_HISTORY = 256


class Origin(enum.IntEnum):
    """How a revision came about. Values equal those of ``chairlift.v1.ConfigOrigin``."""

    START = 1
    UPDATE = 2
    ROLLBACK = 3
    GUARD = 4


class GuardMetric(enum.IntEnum):
    """What a guard watches. Values equal those of ``chairlift.v1.GuardMetric``."""

    TTFT_P99 = 1
    """In ns, as are the next two."""
    ITL_P99 = 2
    QUEUE_P99 = 3
    ERROR_RATIO = 4
    """Refused or failed requests, parts per million of all that were answered or ended."""
    PREEMPTION_RATE = 5
    """Thousandths of a preemption a second."""


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """Takes a change back by itself when the metric passes its bound within the window after it."""

    metric: GuardMetric
    bound: int
    window_ns: int


class Revision(msgspec.Struct, frozen=True):
    """One state of the knobs."""

    number: int
    """1 at the start, one more with each change."""
    config: SchedulingConfig
    origin: Origin
    at_ns: int
    comment: str = ""
    guard: Guard | None = None
    restores: int | None = None
    """The earlier revision whose values these are."""
    actor: str = ""
    """Who made it; empty for the scheduler itself."""


class Revisions:
    """The revision in force and those before it, the oldest forgotten."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._history = [Revision(1, config, Origin.START, 0)]

    @property
    def current(self) -> Revision:
        """In force."""
        return self._history[-1]

    def history(self) -> tuple[Revision, ...]:
        """Oldest first, the current one last."""
        return tuple(self._history)

    def find(self, number: int | None) -> Revision | None:
        """The revision with that number, or (None) the one before the current; None when it is not known."""
        if number is None:
            return self._history[-2] if len(self._history) > 1 else None
        return next((one for one in self._history if one.number == number), None)

    def add(
        self,
        config: SchedulingConfig,
        origin: Origin,
        now: int,
        comment: str = "",
        guard: Guard | None = None,
        restores: int | None = None,
        actor: str = "",
    ) -> Revision:
        """The next revision, in force from now on."""
        revision = Revision(self.current.number + 1, config, origin, now, comment, guard, restores, actor)
        self._history.append(revision)
        del self._history[:-MAX_HISTORY]
        return revision
