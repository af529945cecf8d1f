"""Reads a request's body within bounds of size and time."""

import asyncio

from starlette.types import Receive, Scope

from chairlift.ipc.common import Reason
from gateway.errors.api_error import ApiError, GatewayReason


async def read_body(scope: Scope, receive: Receive, max_bytes: int, timeout_s: float) -> bytes | None:
    """All of it; None where the client has gone. Raises ApiError for one that is no JSON, too large or too slow."""
    headers = dict(scope["headers"])
    kind, length = headers.get(b"content-type", b""), headers.get(b"content-length", b"")
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        # A page in somebody's browser may send any other kind to a server on this machine without being asked.
        raise ApiError(GatewayReason.MALFORMED_REQUEST, "send the header `content-type: application/json`")
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise ApiError(GatewayReason.MALFORMED_REQUEST, "content-encoding: a compressed body is not supported")
    if length.isdigit() and int(length[:19]) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, max_bytes)
    except TimeoutError:
        limits = (("http_read_timeout_s", f"{timeout_s:g}"),)
        raise ApiError(Reason.DEADLINE, "the body did not arrive in time", limits=limits) from None


async def _read(receive: Receive, max_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    limits = (("max_request_bytes", str(max_bytes)),)
    return ApiError(GatewayReason.REQUEST_TOO_LARGE, f"a request may have {max_bytes} bytes", limits=limits)
