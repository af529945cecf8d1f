"""Set-up of structured logs, by `configure_logging`, and a process's last line, by `give_up`.

The lowest level that is written is kept by the standard library's logger `chairlift`, so that it can be changed while
loggers that were made earlier go on being used. Audit lines are written at every level. A log that cannot be written
stops nobody: the next line that can says in ``lost_lines`` how many could not.
"""

import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

from chairlift.runtime.line_stream import LineStream
from chairlift.runtime.log_limits import LibraryLogs, WarningLimit
from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import TelemetrySettings

AUDIT_EVENT = "audit"
"""Name of the event of who changed what; nobody can silence it."""

_LEVEL_KEEPER = "chairlift"


def set_log_level(level: str) -> None:
    """From now on lower levels are not written. Raises ValueError for a name that is no level."""
    logging.getLogger(_LEVEL_KEEPER).setLevel(level.upper())


def log_level() -> str:
    """The lowest level that is written, as in the settings."""
    return logging.getLevelName(logging.getLogger(_LEVEL_KEEPER).level).lower()


def drop_below_level(_: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Processor: ends the way of what is below the level in force."""
    is_written = logging.getLogger(_LEVEL_KEEPER).isEnabledFor(logging.getLevelNamesMapping()[method.upper()])
    if not is_written and event.get("event") != AUDIT_EVENT:
        raise structlog.DropEvent
    return event


def give_up(code: ExitCode, event: str, error: Exception) -> ExitCode:
    """Says in the log why a process ends, by the first line of `error`. Returns `code`."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    structlog.get_logger().error(event, reason=reason)
    return code


def configure_logging(settings: TelemetrySettings, process: str) -> None:
    """Logs as JSON lines (or for a terminal) on stderr, each with its process's name and id.

    Warnings that repeat are limited. The libraries' own logs below warning are left out. No event may carry prompt or
    output text.
    """
    stream = LineStream(sys.stderr)
    console = settings.log_format == "console" or (settings.log_format == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty()) if console else structlog.processors.JSONRenderer()
    )
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    set_log_level(settings.log_level)
    structlog.configure(
        processors=[
            drop_below_level,
            WarningLimit(),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _LostLines(stream),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[LibraryLogs()], force=True)
    structlog.contextvars.bind_contextvars(process=process, pid=os.getpid())


class _LostLines:
    """Processor: the first event after lines that could not be written says how many they were."""

    def __init__(self, stream: LineStream) -> None:
        self._stream = stream

    def __call__(self, _logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if self._stream.num_lost:
            event["lost_lines"] = self._stream.num_lost
        return event
