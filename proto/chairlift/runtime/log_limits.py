"""Keeps a log readable when one thing goes wrong a thousand times a second, and brings libraries' own logs into it.

Both are parts of `chairlift.runtime.telemetry`'s set-up. Knows no event by name.
"""

import contextlib
import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec
import structlog

WARNINGS_A_WINDOW = 10
WINDOW_S = 10.0
_MAX_NAMES = 1024


class _Window(msgspec.Struct):
    since: float
    num_seen: int = 0


class WarningLimit:
    """A structlog processor: of each event at level warning, WARNINGS_A_WINDOW pass in WINDOW_S.

    The first one of a later window says in ``suppressed`` how many did not. Information and errors always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Passes the event on, or raises structlog.DropEvent."""
        if method != "warning":
            return event
        now, name = self._clock(), f"{event.get('event')} {event.get('logger', '')}"
        window = self._windows.get(name)
        if window is None:
            if len(self._windows) >= _MAX_NAMES:
                self._windows.clear()
            window = self._windows[name] = _Window(now)
        elif now - window.since >= WINDOW_S:
            if window.num_seen > WARNINGS_A_WINDOW:
                event["suppressed"] = window.num_seen - WARNINGS_A_WINDOW
            window.since, window.num_seen = now, 0
        window.num_seen += 1
        if window.num_seen > WARNINGS_A_WINDOW:
            raise structlog.DropEvent
        return event


class LibraryLogs(logging.Handler):
    """Writes what libraries log as events of ours, ``library_logged``, so that a log has one form.

    Their errors are limited as warnings are: asyncio has one for each connection that finds no free descriptor.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._errors = WarningLimit(clock)

    def emit(self, record: logging.LogRecord) -> None:
        """One record. The first line of its message only: libraries put whole answers of servers there."""
        lines = record.getMessage().splitlines()
        event: MutableMapping[str, Any] = {"logger": record.name, "message": lines[0][:500] if lines else ""}
        if record.levelno < logging.ERROR:
            structlog.get_logger().warning("library_logged", **event)
            return
        with contextlib.suppress(structlog.DropEvent):
            structlog.get_logger().error("library_logged", **self._errors(None, "warning", event))
