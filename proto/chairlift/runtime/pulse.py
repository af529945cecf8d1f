"""When the ends of a link say that they live, and when the other end counts as silent. Pure: time is an argument.

The scheduler beats, and the others answer: two ends that each beat by a clock of their own wake each other twice as
often. A beat says when the next one comes, so that a scheduler without requests can rest for long: a wake costs an idle
process milliseconds, since others have had the caches meanwhile. Whoever says anything else ends the rest at both ends,
and silence is noticed as soon as ever.
"""

from chairlift.runtime.round_times import until_round_time
from chairlift.runtime.settings import IpcSettings

_ANSWER_AFTER = 0.5
"""Heartbeat intervals since the last beat from which on a beat of the other end is answered."""
_UNASKED_AFTER = 1.25
"""Heartbeat intervals without a beat to answer after which one is sent all the same."""
_RESTS_SINCE_MINOR = 1
_MAX_REST_S = 60.0
"""The longest that a setting may ask for, and that is believed: a frame may be damaged."""
_NS = 1_000_000_000


def can_rest(minor: int) -> bool:
    """Whether a peer of that minor version of the protocol understands that a beat tells when the next one comes."""
    return minor >= _RESTS_SINCE_MINOR


class Rhythm:
    """Of the end that beats. Times are monotonic nanoseconds."""

    def __init__(self, settings: IpcSettings, now: int) -> None:
        self._interval_ns = round(settings.heartbeat_interval_s * _NS)
        self._idle_interval_ns = round(settings.idle_heartbeat_interval_s * _NS)
        self._timeout_ns = round(settings.heartbeat_timeout_s * _NS)
        self._resting_until = now
        self._is_disturbed = True
        self.next_beat = now
        """When the next beat is to be sent."""

    def beat(self, now: int, *, may_rest: bool) -> int:
        """A beat is sent now. Returns what it says of the next one, in nanoseconds; 0: it comes at the usual interval.

        The first beat after something has happened tells peers of it, and begins no rest; the next one may.
        """
        rests, self._is_disturbed = may_rest and not self._is_disturbed, False
        self.next_beat = now + self._interval_ns
        if not rests or self._idle_interval_ns <= self._interval_ns:
            self._resting_until = now
            return 0
        until = now + until_round_time(now, self._idle_interval_ns)
        self.next_beat = until if until >= self.next_beat else until + self._idle_interval_ns
        self._resting_until = self.next_beat
        return self.next_beat - now

    def disturb(self, now: int) -> bool:
        """Something has happened: the next beat comes soon. Whether that ends a rest."""
        self._is_disturbed = True
        self.next_beat = min(self.next_beat, now + self._interval_ns)
        was_resting, self._resting_until = self._resting_until > now, now
        return was_resting

    def silent_at(self, heard: int) -> int:
        """When a peer that was heard at that time, after the last beat, counts as silent."""
        return max(heard, self._resting_until) + self._timeout_ns

    def own_stall_ns(self, now: int) -> int:
        """How long this end itself has stood still, as shown by a beat that is late; not above 0 where none is."""
        return now - self.next_beat - 2 * self._interval_ns


class Pulse:
    """Of the end that answers. Times are monotonic seconds."""

    def __init__(self, settings: IpcSettings, now: float) -> None:
        self._interval_s = settings.heartbeat_interval_s
        self._timeout_s = settings.heartbeat_timeout_s
        self._heard_at = self._beat_at = self._resting_until = now

    def hear(self, now: float) -> None:
        """Something came from the other end."""
        self._heard_at = now

    def rest(self, now: float, next_in_ns: int) -> None:
        """A beat of the other end came, which says when the next one does."""
        self._resting_until = now + min(next_in_ns / _NS, _MAX_REST_S)

    def end_rest(self, now: float) -> bool:
        """This end says something other than a beat, which ends the other's rest. Whether it rested."""
        was_resting = self._resting_until > now
        if was_resting:
            self._resting_until = now
        return was_resting

    def beat(self, now: float) -> None:
        """This end has told that it lives."""
        self._beat_at = now

    def silence_s(self, now: float) -> float:
        """How long nothing has come that should have; not above 0 while the other end may rest."""
        return now - max(self._heard_at, self._resting_until)

    def is_silent(self, now: float) -> bool:
        """Whether nothing has come for too long."""
        return self.silence_s(now) > self._timeout_s

    def is_due(self, now: float) -> bool:
        """Whether a beat is to be sent, although none has come to be answered."""
        return now >= self._due_at

    def is_answer_due(self, now: float) -> bool:
        """Whether a beat of the other end that came now, after `rest` was told of it, is to be answered.

        One that begins a rest always is: what this end said shortly before may have been heard before that beat was
        sent, and covers nothing of the rest.
        """
        return self._resting_until > now or now - self._beat_at >= _ANSWER_AFTER * self._interval_s

    def next_at(self, now: float) -> float:
        """When `is_due` or `is_silent` becomes true, if nothing happens until then."""
        silent_at = max(self._heard_at, self._resting_until) + self._timeout_s
        return self._due_at if silent_at < now else min(self._due_at, silent_at)

    @property
    def _due_at(self) -> float:
        return max(self._beat_at, self._resting_until) + _UNASKED_AFTER * self._interval_s
