"""Collects what is wrong with a request, so that its sender learns all of it at once."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from chairlift.ipc.common import Reason
from gateway.errors.api_error import ApiError, FieldViolation

MAX_VIOLATIONS = 8
"""More than these are not told; checking goes no further than it must."""

_NS = 1_000_000_000
_MAX_SECONDS = 10 * 365 * 24 * 3600


class Violations:
    """Violations of one request, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []
        self._limits: dict[str, str] = {}

    @property
    def is_full(self) -> bool:
        """Whether enough are known."""
        return len(self._found) >= MAX_VIOLATIONS

    def add(self, field: str, description: str, **limits: object) -> None:
        """`field` cannot be accepted; `limits` are the limits in force that it breaks, by name."""
        if not self.is_full:
            self._found.append(FieldViolation(field, description))
            self._limits |= {name: str(value) for name, value in limits.items()}

    def check(self, is_valid: bool, field: str, description: str, **limits: object) -> bool:
        """Adds a violation unless `is_valid`; returns it."""
        if not is_valid:
            self.add(field, description, **limits)
        return is_valid

    def check_unknown_fields(self, message: Message, path: str) -> None:
        """What this server does not know is refused, never ignored: a newer client relies on it."""
        # Nearly always there are none, and a set without any is false without being walked.
        unknown = UnknownFieldSet(message)
        if len(unknown):
            self.add(f"{path}.{unknown[0].field_number}" if path else str(unknown[0].field_number), _UNKNOWN)

    def raise_if_any(self) -> None:
        """Raises ApiError when there is one."""
        if self._found:
            first, others = self._found[0], len(self._found) - 1
            more = f" (and {others} more)" if others else ""
            raise ApiError(
                Reason.INVALID_REQUEST,
                f"{first.field}: {first.description}{more}",
                violations=tuple(self._found),
                limits=tuple(self._limits.items()),
            )


def refuse_unknown_fields(request: Message) -> None:
    """For a request with nothing else to check. Raises ApiError for a field that this server does not know."""
    violations = Violations()
    violations.check_unknown_fields(request, "")
    violations.raise_if_any()


_UNKNOWN = "a field of this number is not known to this server"


def duration_ns(violations: Violations, duration: Duration, field: str, *, may_be_zero: bool) -> int:
    """Nanoseconds of a duration from a client; 0, with a violation, where it is none or out of bounds."""
    seconds, nanos = duration.seconds, duration.nanos
    if not -_NS < nanos < _NS or seconds * nanos < 0:
        violations.add(field, "is not a valid duration")
        return 0
    if seconds < 0 or nanos < 0 or (not may_be_zero and seconds == nanos == 0):
        violations.add(field, "must not be negative" if may_be_zero else "must be longer than 0")
        return 0
    if seconds > _MAX_SECONDS:
        violations.add(field, f"must be at most {_MAX_SECONDS} s", max_duration_s=_MAX_SECONDS)
        return 0
    return seconds * _NS + nanos
