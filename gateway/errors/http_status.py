"""Which HTTP status each typed reason is: one table from the codes that gRPC clients get."""

from collections.abc import Mapping

import grpc

from gateway.errors.api_error import GatewayReason
from gateway.errors.table import status_rule

_Code = grpc.StatusCode
_HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    _Code.INVALID_ARGUMENT: 400,
    _Code.OUT_OF_RANGE: 400,
    _Code.UNAUTHENTICATED: 401,
    _Code.PERMISSION_DENIED: 403,
    _Code.NOT_FOUND: 404,
    _Code.ALREADY_EXISTS: 409,
    _Code.ABORTED: 409,
    _Code.RESOURCE_EXHAUSTED: 429,
    _Code.CANCELLED: 499,
    _Code.INTERNAL: 500,
    _Code.UNIMPLEMENTED: 501,
    _Code.UNAVAILABLE: 503,
    _Code.DEADLINE_EXCEEDED: 504,
}
"""google.rpc's own; 499 is nginx's for a client that has gone."""


def http_status(reason: str, *, can_retry: bool = False) -> int:
    """The status of `reason`; see `status_rule`."""
    if reason == GatewayReason.REQUEST_TOO_LARGE:
        return 413
    return _HTTP_STATUS.get(status_rule(reason, can_retry=can_retry).code, 500)
