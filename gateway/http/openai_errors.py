"""Our errors as HTTP answers with OpenAI's error object."""

import math

import msgspec

from gateway.errors.api_error import ApiError
from gateway.errors.http_status import http_status
from gateway.errors.table import status_rule

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    405: "invalid_request_error",
    429: "rate_limit_error",
}
_MAX_MESSAGE_CHARS = 400


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """How it is sent."""

    error: ErrorBody


class HttpError(msgspec.Struct, frozen=True):
    """An error, ready to be sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def to_http(error: ApiError, trace_id: str = "") -> HttpError:
    """The answer for `error`; `trace_id` is told where the fault is ours."""
    can_retry = error.retry_after_s is not None
    rule, status = status_rule(error.reason, can_retry=can_retry), http_status(error.reason, can_retry=can_retry)
    retry_s = error.retry_after_s if error.retry_after_s is not None else rule.default_retry_s
    headers: list[tuple[str, str]] = []
    if retry_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(retry_s)))))
        headers.append(("retry-after-ms", str(round(retry_s * 1000))))
    elif status in (409, 429, 503, 504):
        # OpenAI's clients would try these again.
        headers.append(("x-should-retry", "false"))
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if trace_id and status == 500:
        headers.append(("x-trace-id", trace_id))
    return HttpError(status, tuple(headers), encode_error(error, status))


def encode_error(error: ApiError, status: int) -> bytes:
    """The JSON of an error's object."""
    limits = "; ".join(f"{name} = {value}" for name, value in error.limits[:8])
    message = f"{error.message} ({limits})" if limits else error.message
    body = ErrorBody(
        message=message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 1] + "…",
        type=_TYPES.get(status, "server_error"),
        param=error.violations[0].field[:120] if error.violations else None,
        code=error.reason.lower(),
    )
    return msgspec.json.encode(ErrorEnvelope(body))


def plain_error(status: int, message: str, code: str) -> HttpError:
    """For what is wrong with HTTP itself."""
    body = ErrorEnvelope(ErrorBody(message, _TYPES.get(status, "server_error"), None, code))
    return HttpError(status, (), msgspec.json.encode(body))
