"""What to do when a call fails: try again, take the stream up again, or give the error to the caller.

Pure: time and chance are arguments. What is repeated here is safe to repeat: every Generate carries a request_id, so
that a repeat attaches to the request instead of doubling it; once output has arrived, only Resume is used.
"""

import enum

import msgspec

from chairlift.client.connection import DRAINING
from chairlift.client.errors import (
    ChairliftError,
    InternalError,
    NotFoundError,
    OutOfRangeError,
    RequestCancelledError,
    ResourceExhaustedError,
    StreamBrokenError,
    UnavailableError,
    UnimplementedError,
)
from chairlift.client.stream_state import StreamState


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how fast calls are repeated. The server's own retry time goes before the back-off."""

    max_attempts: int = 4
    """Without progress in between; 1 never repeats."""
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 5.0
    multiplier: float = 2.0
    resume_for_s: float = 30.0
    """How long a stream that broke after it was accepted is tried to be taken up again, without progress: longer than a
    gateway's restart. Attempts are not counted meanwhile, unless `max_attempts` is 1."""
    wait_for_room: bool = False
    """Whether refusals for want of room (RESOURCE_EXHAUSTED with a retry time) are waited out, however many."""
    detach_grace_s: float = 30.0
    """How long the server is asked to go on with a request whose stream broke, so that it can be taken up again, where
    the request itself says nothing. A client that dies costs as much; 0: a request ends with its stream."""

    @property
    def can_resume(self) -> bool:
        """Whether a broken stream is taken up at all."""
        return self.max_attempts > 1 and self.resume_for_s > 0


class NextCall(enum.Enum):
    """Which method goes on with a generation."""

    GENERATE = "generate"
    RESUME = "resume"


class NextStep(msgspec.Struct, frozen=True):
    """How a generation goes on."""

    call: NextCall
    pause_s: float
    """To wait before it."""


class Recovery:
    """Counts the failures of one call or generation, and decides."""

    def __init__(self, policy: RetryPolicy, deadline: float | None) -> None:
        """`deadline` is in seconds of the caller's monotonic clock."""
        self._policy = policy
        self._deadline = deadline
        self._failures = 0
        self._tokens_at_failure = 0
        self._broken_at: float | None = None
        self._broken_by: ChairliftError | None = None

    def remaining_s(self, now: float) -> float | None:
        """Time left for the next call; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - now)

    def pause_before_retry(self, error: ChairliftError, now: float, chance: float) -> float:
        """Seconds to wait before the call is repeated. `chance` is uniform in [0, 1). Raises `error` to give up."""
        if not _can_retry(error):
            raise error
        if not (self._policy.wait_for_room and isinstance(error, ResourceExhaustedError)):
            self._failures += 1
        pause = self._backoff_s(chance) if error.retry_delay_s is None else error.retry_delay_s * (1 + chance / 10)
        if self._must_give_up(now + pause):
            raise error
        return pause

    def after_stream_end(
        self, state: StreamState, error: ChairliftError | None, now: float, chance: float
    ) -> NextStep | None:
        """What follows the end of a stream; None when it was the proper one.

        `error` is None for status OK. Raises what the caller must see.
        """
        if state.is_success:
            return None
        if state.is_complete:
            raise error or StreamBrokenError("a choice failed, and yet the status was OK")
        if state.accepted is None:
            broken = error or StreamBrokenError("the stream ended before it was accepted")
            return NextStep(NextCall.GENERATE, self.pause_before_retry(broken, now, chance))
        return NextStep(NextCall.RESUME, self._pause_before_resume(state, error, now, chance))

    def _pause_before_resume(
        self, state: StreamState, error: ChairliftError | None, now: float, chance: float
    ) -> float:
        if self._broken_by is not None and isinstance(error, _CANNOT_RESUME):
            raise StreamBrokenError(f"{self._broken_by.message}; it could not be resumed: {error}") from error
        if error is not None and not _is_break(error):
            raise error
        if state.num_tokens > self._tokens_at_failure:
            self._failures, self._broken_at = 0, None
        if self._broken_at is None:
            self._broken_at = now
        self._tokens_at_failure = state.num_tokens
        self._broken_by = error or StreamBrokenError("the stream ended before the request did")
        self._failures += 1
        pause = self._backoff_s(chance)
        if error is not None and error.retry_delay_s is not None and error.reason != DRAINING:
            # Who drains speaks for itself: another gateway need not be waited for.
            pause = max(pause, error.retry_delay_s)
        if self._must_stay_broken(now + pause, self._broken_at):
            raise StreamBrokenError(self._broken_by.message) from self._broken_by
        return pause

    def _backoff_s(self, chance: float) -> float:
        policy = self._policy
        backoff = policy.initial_backoff_s * policy.multiplier ** min(60, max(0, self._failures - 1))
        return min(backoff, policy.max_backoff_s) * (0.5 + chance / 2)

    def _must_stay_broken(self, next_call_at: float, broken_at: float) -> bool:
        is_late = self._deadline is not None and next_call_at >= self._deadline
        return is_late or self._policy.max_attempts <= 1 or next_call_at - broken_at > self._policy.resume_for_s

    def _must_give_up(self, next_call_at: float) -> bool:
        too_often = self._failures >= self._policy.max_attempts
        return too_often or (self._deadline is not None and next_call_at >= self._deadline)


_CANNOT_RESUME = (UnimplementedError, NotFoundError, OutOfRangeError)


def _can_retry(error: ChairliftError) -> bool:
    match error:
        case StreamBrokenError():
            return True
        case UnavailableError():
            return True
        case ResourceExhaustedError():
            return error.retry_delay_s is not None
        case _:
            return False


def _is_break(error: ChairliftError) -> bool:
    """Whether the connection failed rather than the request: the server's own errors carry a reason."""
    match error:
        case UnavailableError():
            return True
        case ResourceExhaustedError():
            # A gateway that has no room for the stream now; the request goes on meanwhile.
            return error.retry_delay_s is not None
        case InternalError() | RequestCancelledError():
            return not error.reason
        case _:
            return error.code == "UNKNOWN" and not error.reason
