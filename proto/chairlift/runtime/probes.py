"""The plain HTTP port of a process: ``/livez``, ``/readyz``, ``/metrics``.

Live means that the process's own loop turns, whatever its peers do; ready that it can serve. Both are asked of a
`ProcessState` that the loop itself keeps up to date, so that a hung loop cannot look healthy.
"""

import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog

from chairlift.runtime.addresses import parse_address

STALE_AFTER_S = 5.0
"""A loop that has not turned for this long is not live."""


class ProcessState:
    """What a process says of itself. Written by its loop, read by the probe's thread."""

    def __init__(self, stale_after_s: float = STALE_AFTER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._turned = clock()
        self._reason = "starting"
        self._ready = False

    def turned(self) -> None:
        """The loop went round once more."""
        self._turned = self._clock()

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Whether requests can be served, and if not, why."""
        self._ready, self._reason = ready, reason

    def live(self) -> tuple[bool, str]:
        """(live, reason if not)."""
        age = self._clock() - self._turned
        return (True, "") if age < self._stale_after_s else (False, f"loop has not turned for {age:.1f} s")

    def ready(self) -> tuple[bool, str]:
        """(ready, reason if not)."""
        live, reason = self.live()
        return (self._ready, self._reason) if live else (False, reason)


class ProbeServer:
    """Serves the probes on a thread of its own until closed."""

    def __init__(self, listen: str, state: ProcessState, metrics: Callable[[], str] | None = None) -> None:
        """Binds `listen` (host:port; port 0 takes a free one). Raises AddressError, or OSError when it cannot."""
        address = parse_address(listen, "metrics_listen")
        server = _Server6 if ":" in address.host else _Server
        self._server = server((address.host, address.port), _make_handler(state, metrics))
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._end.close()
        self._thread.join()
        self._server.server_close()
        self._ending.close()

    def _serve(self) -> None:
        # `serve_forever` would wake twice a second to see whether it should end.
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._ending, selectors.EVENT_READ)
            while all(key.fileobj is not self._ending for key, _ in selector.select()):
                self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    timeout = 0
    """For a connection that was gone again before it was taken."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A prober that hung up is no event; whatever else goes wrong is one line of the log."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            structlog.get_logger().error("probe_failed", exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _make_handler(state: ProcessState, metrics: Callable[[], str] | None) -> type[BaseHTTPRequestHandler]:
    class _Handler(BaseHTTPRequestHandler):
        # A prober that comes again and again keeps its connection, and so its thread here.
        protocol_version = "HTTP/1.1"
        timeout = 10
        wbufsize = -1  # one packet an answer
        server_version = "chairlift"
        sys_version = ""

        def do_GET(self) -> None:
            match self.path:
                case "/livez":
                    self._answer_state(*state.live())
                case "/readyz":
                    self._answer_state(*state.ready())
                case "/metrics" if metrics is not None:
                    self._answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
                case _:
                    self._answer(404, "not found\n")

        def _answer_state(self, good: bool, reason: str) -> None:
            self._answer(200 if good else 503, "ok\n" if good else f"{reason}\n")

        def _answer(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every second: nothing to log."""

    return _Handler
