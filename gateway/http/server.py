"""The HTTP port on the gateway's own event loop: uvicorn's protocol and flow control, our sockets and our end."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from chairlift.runtime.addresses import Address, AddressError
from gateway.http.connection_limit import ConnectionLimit
from gateway.http.protocol import TimedProtocol
from gateway.http.tls import HttpTls

_BACKLOG = 2048
_MAX_HEAD_BYTES = 64 << 10
_KEEP_ALIVE_S = 75
"""Longer than what clients and proxies keep a connection for, so that they and not we close it."""


class _Listener(socket.socket):
    """Has the queue of _BACKLOG connections whatever it is told.

    To asyncio the backlog is also how often it accepts at one wake. Without a free descriptor it fails that often, and
    each failure sets a timer that fails that often again: with 1 it tries once a second.
    """

    def listen(self, _backlog: int = 1, /) -> None:
        super().listen(_BACKLOG)


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one application on one address. Belongs to one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        max_connections: int,
        head_timeout_s: float,
        tls: HttpTls | None = None,
    ) -> None:
        """Opens nothing yet. With more connections than that only probes are answered."""
        self._address = address
        self._sockets: list[socket.socket] = []
        config = uvicorn.Config(
            ConnectionLimit(app, max_connections, lambda: len(self._server.server_state.connections)),
            http=functools.partial(TimedProtocol, head_timeout_s),  # type: ignore[arg-type]  # called as a class is
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=1,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Binds, shared with other gateways of this user, and serves; returns the port. Raises AddressError."""
        self._sockets = _bind(self._address)
        self._serving = asyncio.create_task(self._server.serve(self._sockets))
        while not self._server.started:
            # uvicorn tells nobody; it needs a few turns of the loop, or ends by an error.
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0)
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends at once: open requests are cancelled."""
        if self._serving is None:
            return
        self._server.should_exit = self._server.force_exit = True
        for task in list(self._server.server_state.tasks):
            task.cancel()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._serving = None


def _bind(address: Address) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    port = address.port
    try:
        found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            one = _Listener(family, kind, protocol)
            sockets.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((where[0], port, *where[2:]))
            port = int(one.getsockname()[1])
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise AddressError(f"gateway.http_listen = {address}: {error.strerror or error}") from None
    return sockets
