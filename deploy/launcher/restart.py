"""How often and how soon a child that died is started again. Pure: time is an argument."""

from collections import deque

from chairlift.runtime.settings import SupervisorSettings

VERDICT_DEATHS = 3
"""Ends of a worker after which a scheduler knows whether a request brings them about: it says so to the next one."""


class RestartBudget:
    """Restarts of one child: at most `max_restarts` within `restart_window_s`, with a pause that doubles."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._restarts: deque[float] = deque()
        self._num_excused = 0

    @property
    def num_recent(self) -> int:
        """Restarts that count at the moment."""
        return len(self._restarts)

    def excuse(self, total: int) -> bool:
        """Takes out of account restarts that were no fault of the child: `total` of them so far, as a scheduler counts.

        One that says less than before is another one, which has begun at 0. Whether that made room.
        """
        new = total - self._num_excused if total >= self._num_excused else total
        self._num_excused = total
        num_removed = min(new, len(self._restarts))
        for _ in range(num_removed):
            self._restarts.popleft()
        return num_removed > 0

    def next_pause(self, now: float, num_pending: int = 0) -> float | None:
        """Seconds to wait before the restart that is due at `now` (monotonic seconds), or None to give up.

        Counts that restart. `num_pending` more than `max_restarts` are allowed (unless that is 0), since it is not
        known yet whether the last ones count.
        """
        settings = self._settings
        while self._restarts and now - self._restarts[0] >= settings.restart_window_s:
            self._restarts.popleft()
        recent = len(self._restarts)
        if recent >= settings.max_restarts + (num_pending if settings.max_restarts else 0):
            return None
        self._restarts.append(now)
        return min(settings.restart_backoff_s * 2.0 ** min(recent, 60), settings.max_restart_backoff_s)
