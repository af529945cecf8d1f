"""When one end of a link says that it lives, and when the other end counts as silent. Pure: time is an argument.

Two ends that each beat by a clock of their own wake each other twice as often as one that answers the other's beats.
"""

from chairlift.runtime.settings import IpcSettings

_ANSWER_AFTER = 0.5
_BEAT_AFTER = 1.25
"""Of the interval, since the last beat: from the first on a beat of the other end is answered at once; after the second
one is sent whatever comes.
"""


class Pulse:
    """Of one attachment. Times are monotonic seconds."""

    def __init__(self, settings: IpcSettings, now: float) -> None:
        self._interval_s = settings.heartbeat_interval_s
        self._timeout_s = settings.heartbeat_timeout_s
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
        return now - self._beat_at >= _BEAT_AFTER * self._interval_s

    def is_answer_due(self, now: float) -> bool:
        """Whether a beat of the other end that came now is to be answered."""
        return now - self._beat_at >= _ANSWER_AFTER * self._interval_s

    def next_at(self) -> float:
        """When `is_due` or `is_silent` may become true, if nothing happens until then."""
        return min(self._beat_at + _BEAT_AFTER * self._interval_s, self._heard_at + self._timeout_s)
