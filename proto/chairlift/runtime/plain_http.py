"""The least of HTTP/1.1 that a prober needs: GET and HEAD without a body, connections that stay open.

Python's own `http.server` parses each head as an e-mail, which was most of what an idle process did. Knows nothing of
what is answered.
"""

import errno
import select
import selectors
import socket
import socketserver
import sys
from collections.abc import Callable
from typing import NamedTuple

import structlog

_IDLE_TIMEOUT_S = 10
_MAX_LINE_BYTES = 8192
_MAX_HEADERS = 100
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S = 0.2


class Response(NamedTuple):
    """What a path gives."""

    status: str
    """``200 OK``"""
    text: str
    content_type: str = "text/plain; charset=utf-8"


class PlainHttpServer:
    """A bound port, each connection of which has a thread. `serve` returns once `end` was called, from elsewhere."""

    def __init__(self, host: str, port: int, respond: Callable[[str], Response | None]) -> None:
        """`respond` gives what lies at a path, None where nothing does. Raises OSError when it cannot bind."""
        self._server = (_Server6 if ":" in host else _Server)((host, port), _Connection)
        self._server.respond = respond
        self._ending, self._end = socket.socketpair()

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.server_address[1])

    def serve(self) -> None:
        """Takes connections."""
        # `serve_forever` would wake twice a second to see whether it should end.
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._ending, selectors.EVENT_READ)
            while all(key.fileobj is not self._ending for key, _ in selector.select()):
                self._server.handle_request()
                if self._server.was_refused:
                    # Without a descriptor the port stays readable: only time gives one back.
                    select.select([self._ending], [], [], _RETRY_S)

    def end(self) -> None:
        """Makes `serve` return."""
        self._end.close()

    def close(self) -> None:
        """Frees the port, after `serve` has returned."""
        self._server.server_close()
        self._ending.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    timeout = 0
    """For a connection that was gone again before it was taken."""
    respond: Callable[[str], Response | None]
    was_refused = False
    """Whether the system had nothing left for the last connection that came."""

    def get_request(self) -> tuple[socket.socket, object]:
        """As the base, and notes what became of it."""
        self.was_refused = False
        try:
            return super().get_request()
        except OSError as error:
            self.was_refused = error.errno in _NOTHING_LEFT
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """A prober that hung up is no event; whatever else goes wrong is one line of the log."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            structlog.get_logger().error("probe_failed", exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Request(NamedTuple):
    method: str
    """Empty where what came is none."""
    path: str
    keeps_connection: bool
    """Whether its sender may send another one."""


class _Connection(socketserver.StreamRequestHandler):
    server: _Server
    timeout = _IDLE_TIMEOUT_S
    wbufsize = -1  # one packet an answer

    def handle(self) -> None:
        """Answers until either side has enough."""
        while (request := self._read()) is not None:
            self._write(request, self._respond(request))
            if not request.keeps_connection:
                return

    def _read(self) -> _Request | None:
        """None at the connection's end, and where no whole head came in time."""
        try:
            words = self.rfile.readline(_MAX_LINE_BYTES).split()
            if not words:
                return None
            if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
                return _Request("", "", keeps_connection=False)
            method, path, version = (word.decode("latin-1") for word in words)
            return _Request(method, path, self._read_headers(is_kept=version != "HTTP/1.0"))
        except TimeoutError:
            return None

    def _read_headers(self, *, is_kept: bool) -> bool:
        """Whether the connection is kept, by what the rest of the head says."""
        for _ in range(_MAX_HEADERS):
            name, _, value = self.rfile.readline(_MAX_LINE_BYTES).partition(b":")
            if not name.strip():
                return is_kept
            match name.lower(), value.strip().lower():
                case b"connection", b"close":
                    is_kept = False
                case b"connection", b"keep-alive":
                    is_kept = True
                case ((b"content-length" | b"transfer-encoding"), _):
                    return False  # a body would be taken for the next request
        return False

    def _respond(self, request: _Request) -> Response:
        match request.method:
            case "GET" | "HEAD":
                return self.server.respond(request.path) or Response("404 Not Found", "not found\n")
            case "":
                return Response("400 Bad Request", "not understood\n")
            case _:
                return Response("501 Not Implemented", "GET and HEAD only\n")

    def _write(self, request: _Request, response: Response) -> None:
        body = response.text.encode()
        connection = "keep-alive" if request.keeps_connection else "close"
        head = f"Content-Type: {response.content_type}\r\nContent-Length: {len(body)}\r\nConnection: {connection}\r\n"
        self.wfile.write(f"HTTP/1.1 {response.status}\r\n{head}\r\n".encode())
        if request.method != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
