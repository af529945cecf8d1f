"""How often and how soon a child that died is started again. Pure: time is an argument."""

from collections import deque

from chairlift.runtime.settings import SupervisorSettings


class RestartBudget:
    """Restarts of one child: at most `max_restarts` within `restart_window_s`, with a pause that doubles."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._restarts: deque[float] = deque()
        self._num_excused = 0

    def excuse(self, total: int) -> bool:
        """Takes out of account restarts that were no fault of the child: `total` of them so far, over all times.

        Whether that made room.
        """
        new, self._num_excused = max(0, total - self._num_excused), total
        num_removed = min(new, len(self._restarts))
        for _ in range(num_removed):
            self._restarts.popleft()
        return num_removed > 0

    def next_pause(self, now: float) -> float | None:
        """Seconds to wait before the restart that is due at `now` (monotonic seconds), or None to give up.

        Counts that restart.
        """
        settings = self._settings
        while self._restarts and now - self._restarts[0] >= settings.restart_window_s:
            self._restarts.popleft()
        recent = len(self._restarts)
        if recent >= settings.max_restarts:
            return None
        self._restarts.append(now)
        return min(settings.restart_backoff_s * 2.0 ** min(recent, 60), settings.max_restart_backoff_s)
