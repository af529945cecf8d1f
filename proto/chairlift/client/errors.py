"""Errors of the client library: one class a row of the public contract's table, and two for streams themselves."""

from collections.abc import Mapping

import msgspec

from chairlift.client.results import Completion


class FieldViolation(msgspec.Struct, frozen=True):
    """A field of the request that was refused, and why."""

    field: str
    description: str


class QuotaViolation(msgspec.Struct, frozen=True):
    """A quota that was reached."""

    subject: str
    description: str


class ChairliftError(Exception):
    """Base of all errors that a request can end with.

    `code` is the gRPC status' name, `reason` the server's own (UPPER_SNAKE; empty when the error did not come from
    it), `metadata` the limits in force. `retry_delay_s` says when a retry may succeed, where the server knows.
    `partial` is what had arrived of a generation.
    """

    code: str = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay_s: float | None = None,
        field_violations: tuple[FieldViolation, ...] = (),
        quota_violations: tuple[QuotaViolation, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_delay_s = retry_delay_s
        self.field_violations = field_violations
        self.quota_violations = quota_violations
        self.request_id: str | None = None
        self.partial: Completion | None = None

    def __str__(self) -> str:
        violations = (f"{item.field}: {item.description}" for item in self.field_violations)
        untold = [text for text in violations if text not in self.message]
        return "; ".join([f"{self.reason or self.code}: {self.message}", *untold])


class InvalidArgumentError(ChairliftError, ValueError):
    """The request is malformed, contradictory, not supported, or can never fit; see `field_violations`."""

    code = "INVALID_ARGUMENT"


class UnauthenticatedError(ChairliftError):
    """No or bad credentials."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(ChairliftError):
    """These credentials may not use this method or model."""

    code = "PERMISSION_DENIED"


class NotFoundError(ChairliftError):
    """No such model or request."""

    code = "NOT_FOUND"


class AlreadyExistsError(ChairliftError):
    """The request_id is in use by a request with other fields."""

    code = "ALREADY_EXISTS"


class ResourceExhaustedError(ChairliftError):
    """No room now: queue full, quota reached, or the wanted time to the first token cannot be met."""

    code = "RESOURCE_EXHAUSTED"


class DeadlineExceededError(ChairliftError):
    """Its deadline or queue time-out passed; `partial` is what came before."""

    code = "DEADLINE_EXCEEDED"


class AbortedError(ChairliftError):
    """Superseded by a newer attachment, or cut because this client read too slowly; see `reason`."""

    code = "ABORTED"


class RequestCancelledError(ChairliftError):
    """The request was cancelled."""

    code = "CANCELLED"


class OutOfRangeError(ChairliftError):
    """A resumption from beyond what is kept."""

    code = "OUT_OF_RANGE"


class UnavailableError(ChairliftError):
    """No server there, or it is draining or has no scheduler or worker."""

    code = "UNAVAILABLE"


class UnimplementedError(ChairliftError):
    """This server does not offer the method."""

    code = "UNIMPLEMENTED"


class InternalError(ChairliftError):
    """A fault of the server."""

    code = "INTERNAL"


class StreamBrokenError(ChairliftError):
    """The stream ended before the request did and could not be taken up again; `partial` is what came before."""

    code = "UNAVAILABLE"


class StreamCorruptError(ChairliftError):
    """The server's stream contradicts itself: output is missing or came twice. `partial` is what was sound."""

    code = "DATA_LOSS"


ERRORS_BY_CODE: Mapping[str, type[ChairliftError]] = {
    error.code: error
    for error in (
        InvalidArgumentError,
        UnauthenticatedError,
        PermissionDeniedError,
        NotFoundError,
        AlreadyExistsError,
        ResourceExhaustedError,
        DeadlineExceededError,
        AbortedError,
        RequestCancelledError,
        OutOfRangeError,
        UnavailableError,
        UnimplementedError,
        InternalError,
    )
}
