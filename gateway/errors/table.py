"""Which gRPC status each typed reason is: the one place that decides it."""

import grpc
import msgspec

from chairlift.ipc.common import Reason
from gateway.errors.api_error import GatewayReason

_Code = grpc.StatusCode


class StatusRule(msgspec.Struct, frozen=True):
    """How one reason is told."""

    code: grpc.StatusCode
    names_fields: bool = False
    """A BadRequest names the fields at fault."""
    is_quota: bool = False
    """A QuotaFailure names the limit that is used up."""
    default_retry_s: float | None = None
    """When a retry may succeed, where whoever refused did not say; None: a retry is pointless unless it was said."""


_INVALID = StatusRule(_Code.INVALID_ARGUMENT, names_fields=True)
_FULL = StatusRule(_Code.RESOURCE_EXHAUSTED, is_quota=True, default_retry_s=1.0)
_AWAY = StatusRule(_Code.UNAVAILABLE, default_retry_s=1.0)
_INTERNAL = StatusRule(_Code.INTERNAL)

STATUS_RULES: dict[str, StatusRule] = {
    Reason.INVALID_REQUEST: _INVALID,
    Reason.CONTEXT_LENGTH_EXCEEDED: _INVALID,
    Reason.KV_CAPACITY_EXCEEDED: _INVALID,
    GatewayReason.MALFORMED_REQUEST: _INVALID,
    GatewayReason.REQUEST_TOO_LARGE: _INVALID,
    GatewayReason.CHAT_TEMPLATE: _INVALID,
    GatewayReason.MISSING_CREDENTIALS: StatusRule(_Code.UNAUTHENTICATED),
    GatewayReason.INVALID_CREDENTIALS: StatusRule(_Code.UNAUTHENTICATED),
    GatewayReason.METHOD_NOT_ALLOWED: StatusRule(_Code.PERMISSION_DENIED),
    GatewayReason.MODEL_NOT_ALLOWED: StatusRule(_Code.PERMISSION_DENIED),
    GatewayReason.UNKNOWN_MODEL: StatusRule(_Code.NOT_FOUND),
    GatewayReason.UNKNOWN_REPLICA: StatusRule(_Code.NOT_FOUND),
    Reason.UNKNOWN_REQUEST: StatusRule(_Code.NOT_FOUND),
    Reason.REQUEST_ID_IN_USE: StatusRule(_Code.ALREADY_EXISTS),
    Reason.OFFSET_NOT_KEPT: StatusRule(_Code.OUT_OF_RANGE, names_fields=True),
    Reason.QUEUE_FULL: _FULL,
    Reason.TENANT_QUOTA_EXCEEDED: _FULL,
    Reason.TTFT_SLO_UNREACHABLE: _FULL,
    GatewayReason.TOO_MANY_STREAMS: _FULL,
    Reason.DEADLINE: StatusRule(_Code.DEADLINE_EXCEEDED),
    Reason.QUEUE_TIMEOUT: StatusRule(_Code.DEADLINE_EXCEEDED),
    Reason.SUPERSEDED: StatusRule(_Code.ABORTED),
    Reason.SLOW_CLIENT: StatusRule(_Code.ABORTED),
    Reason.WRONG_REVISION: StatusRule(_Code.ABORTED),
    Reason.CANCELLED: StatusRule(_Code.CANCELLED),
    Reason.DRAINING: _AWAY,
    Reason.NO_SCHEDULER: _AWAY,
    Reason.NO_WORKER: _AWAY,
    GatewayReason.TEMPLATE_UNAVAILABLE: _AWAY,
    GatewayReason.NOT_IMPLEMENTED: StatusRule(_Code.UNIMPLEMENTED),
    Reason.STEP_FAILED: _INTERNAL,
    Reason.INTERNAL: _INTERNAL,
    # Between processes; a client meets them only by a bug of ours.
    Reason.VERSION_MISMATCH: _INTERNAL,
    Reason.FINGERPRINT_MISMATCH: _INTERNAL,
    Reason.GEOMETRY_MISMATCH: _INTERNAL,
}


def status_rule(reason: str, *, can_retry: bool = False) -> StatusRule:
    """The rule of `reason`. A newer scheduler's reason that is not in the table is judged by whether it may pass."""
    known = STATUS_RULES.get(reason)
    if known is not None:
        return known
    return _AWAY if can_retry else _INTERNAL
