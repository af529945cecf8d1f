"""When the ends of a link say that they live, and when the other end counts as silent. Pure: time is an argument.

The scheduler beats, and the others answer: two ends that each beat by a clock of their own wake each other twice as
often. While nothing runs it beats half as often. A wake costs an idle process milliseconds, since others have had the
caches meanwhile.
"""

from chairlift.runtime.settings import IpcSettings

_ANSWER_AFTER = 0.5
"""Heartbeat intervals since the last beat from which on a beat of the other end is answered."""


def idle_interval_s(settings: IpcSettings) -> float:
    """Between two beats of a scheduler that has no request. A peer may miss one before it counts it as silent."""
    return max(settings.heartbeat_interval_s, min(2 * settings.heartbeat_interval_s, settings.heartbeat_timeout_s / 2))


class Pulse:
    """Of the end that answers. Times are monotonic seconds."""

    def __init__(self, settings: IpcSettings, now: float) -> None:
        self._interval_s = settings.heartbeat_interval_s
        self._timeout_s = settings.heartbeat_timeout_s
        self._unasked_after_s = 1.25 * idle_interval_s(settings)
        self._heard_at = self._beat_at = now

    def hear(self, now: float) -> None:
        """Something came from the other end."""
        self._heard_at = now

    def beat(self, now: float) -> None:
        """This end has told that it lives."""
        self._beat_at = now

    def is_silent(self, now: float) -> bool:
        """Whether nothing has come for too long."""
        return now - self._heard_at > self._timeout_s

    def is_due(self, now: float) -> bool:
        """Whether a beat is to be sent, although none has come to be answered."""
        return now - self._beat_at >= self._unasked_after_s

    def is_answer_due(self, now: float) -> bool:
        """Whether a beat of the other end that came now is to be answered."""
        return now - self._beat_at >= _ANSWER_AFTER * self._interval_s

    def next_at(self, now: float) -> float:
        """When `is_due` or `is_silent` becomes true, if nothing happens until then."""
        due_at, silent_at = self._beat_at + self._unasked_after_s, self._heard_at + self._timeout_s
        return due_at if silent_at < now else min(due_at, silent_at)
