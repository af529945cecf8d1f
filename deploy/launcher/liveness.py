"""When a child that gives no sign of life counts as hung. Pure: time is an argument."""

import msgspec

from chairlift.runtime.settings import SupervisorSettings

_CROWD_FACTOR = 5


class Silence(msgspec.Struct, frozen=True):
    """A child has been silent for longer than it may."""

    lasted_s: float
    setting: str
    """Which bound it passed, by its path."""


class Liveness:
    """Of one child since its start.

    Its silence begins with the first look that finds no sign, not with the last that did: time in which the supervisor
    itself stood still is not held against the child. A child that has never been ready may be silent for
    `start_timeout_s`, since imports and compilers let nobody else have a turn. Where most children are silent together
    the machine is more likely at fault than any of them, and to load a model again would not help it: each may be
    silent for `_CROWD_FACTOR` times as long.
    """

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._silent_since: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the last look found no sign."""
        return self._silent_since is not None

    def note(self, now: float, *, is_live: bool, was_ready: bool, are_most_silent: bool = False) -> Silence | None:
        """Takes what a look found at `now` (monotonic seconds). The silence if it lasts too long."""
        if is_live:
            self._silent_since = None
            return None
        if self._silent_since is None:
            self._silent_since = now
        setting = "hang_timeout_s" if was_ready else "start_timeout_s"
        lasted_s = now - self._silent_since
        limit_s: float = getattr(self._settings, setting) * (_CROWD_FACTOR if are_most_silent else 1)
        return Silence(lasted_s, f"supervisor.{setting}") if lasted_s >= limit_s else None
