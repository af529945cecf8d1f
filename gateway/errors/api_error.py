"""An error as a client is to see it, before it becomes a status."""

import enum

import msgspec


class GatewayReason(enum.StrEnum):
    """Reasons that only the gateway gives; the scheduler's are `chairlift.ipc.common.Reason`."""

    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    """The bytes are no message of the method."""
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    CHAT_TEMPLATE = "CHAT_TEMPLATE"
    """The model's chat template does not render these messages."""
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    UNKNOWN_REPLICA = "UNKNOWN_REPLICA"
    TOO_MANY_STREAMS = "TOO_MANY_STREAMS"
    TEMPLATE_UNAVAILABLE = "TEMPLATE_UNAVAILABLE"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    MISSING_CREDENTIALS = "MISSING_CREDENTIALS"
    INVALID_CREDENTIALS = "INVALID_CREDENTIALS"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    MODEL_NOT_ALLOWED = "MODEL_NOT_ALLOWED"


class FieldViolation(msgspec.Struct, frozen=True):
    """A field of the request that cannot be accepted."""

    field: str
    """Path in the message, for instance ``messages.messages[3].role``."""
    description: str


class ApiError(Exception):
    """Ends a call with the status that `table.STATUS_RULES` gives for `reason`.

    `message`, `violations` and `limits` are for the user: no text of a prompt or an output may be in them.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        limits: tuple[tuple[str, str], ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = str(reason)
        self.message = message
        self.violations = violations
        self.limits = limits
        self.retry_after_s = retry_after_s


def refuse_field(field: str, description: str, **limits: object) -> ApiError:
    """The error for one field; `limits` are the limits in force, by name."""
    return ApiError(
        "INVALID_REQUEST",
        f"{field}: {description}",
        violations=(FieldViolation(field, description),),
        limits=tuple((name, str(value)) for name, value in limits.items()),
    )
