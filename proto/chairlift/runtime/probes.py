"""The plain HTTP port of a process: ``/livez``, ``/readyz``, ``/metrics``.

Live means that the process's own loop turns, whatever its peers do; ready that it can serve. Both are asked of a
`ProcessState` that the loop itself keeps up to date, so that a hung loop cannot look healthy.
"""

import threading
import time
from collections.abc import Callable

from chairlift.runtime.addresses import parse_address
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.plain_http import PlainHttpServer, Response

EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of a scrape's answer."""
STALE_AFTER_S = 5.0
"""A loop that is late by this is not live."""


class ProcessState:
    """What a process says of itself. Written by its loop, read by the probe's thread and by its supervisor."""

    def __init__(
        self,
        stale_after_s: float = STALE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        sign: LifeSign | None = None,
    ) -> None:
        """`sign` shows a supervisor what `live` answers."""
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._sign = sign
        self.turned()
        self._reason = "starting"
        self._ready = False

    def turned(self, rest_s: float = 0.0) -> None:
        """The loop went round once more, and will again within `rest_s`, whether or not anything happens."""
        self._turned = self._clock()
        self.lives_until = self._turned + rest_s + self._stale_after_s
        """When it counts as hung, unless it turns before; by the clock."""
        if self._sign is not None:
            self._sign.show(self.lives_until)

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Whether requests can be served, and if not, why."""
        self._ready, self._reason = ready, reason

    def live(self) -> tuple[bool, str]:
        """(live, reason if not)."""
        now = self._clock()
        return (True, "") if now < self.lives_until else (False, f"loop has not turned for {now - self._turned:.1f} s")

    def ready(self) -> tuple[bool, str]:
        """(ready, reason if not)."""
        live, reason = self.live()
        return (self._ready, self._reason) if live else (False, reason)


class ProbeServer:
    """Serves the probes on threads of its own until closed."""

    def __init__(self, listen: str, state: ProcessState, metrics: Callable[[], str] | None = None) -> None:
        """Binds `listen` (host:port; port 0 takes a free one). Raises AddressError, or OSError when it cannot."""
        self._state = state
        self._metrics = metrics
        address = parse_address(listen, "metrics_listen")
        self._server = PlainHttpServer(address.host, address.port, self._respond)
        self._thread = threading.Thread(target=self._server.serve, name="probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The bound port."""
        return self._server.port

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.end()
        self._thread.join()
        self._server.close()

    def _respond(self, path: str) -> Response | None:
        match path:
            case "/livez":
                return _to_response(*self._state.live())
            case "/readyz":
                return _to_response(*self._state.ready())
            case "/metrics" if self._metrics is not None:
                return Response("200 OK", self._metrics(), EXPOSITION_TYPE)
            case _:
                return None


def _to_response(good: bool, reason: str) -> Response:
    return Response("200 OK", "ok\n") if good else Response("503 Service Unavailable", f"{reason}\n")
