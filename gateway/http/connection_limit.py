"""What is answered while a port has more connections than it may: probes as ever, all else an error to try again."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.openai_errors import plain_error

_PROBES = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})
_RETRY_S = 1


class ConnectionLimit:
    """An application in front of the port's own. Belongs to one event loop."""

    def __init__(self, app: ASGIApp, max_connections: int, count: Callable[[], int]) -> None:
        """`count` tells how many are open."""
        self._app = app
        self._max_connections = max_connections
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if self._count() <= self._max_connections or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        error = plain_error(503, "this gateway has as many connections as it takes", "too_many_connections")
        headers = [
            (b"content-type", b"application/json"),
            (b"retry-after", str(_RETRY_S).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": error.body})
