"""Set-up of structured logs. Every process calls `configure_logging` once, first thing."""

import logging
import os
import sys

import structlog

from chairlift.runtime.settings import TelemetrySettings


def configure_logging(settings: TelemetrySettings, process: str) -> None:
    """Logs as JSON lines (or for a terminal) on stderr, each with its process's name and id.

    The libraries' own logs below warning are left out. No event may carry prompt or output text.
    """
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(level, logging.WARNING), stream=sys.stderr, format="%(name)s %(message)s", force=True)
    structlog.contextvars.bind_contextvars(process=process, pid=os.getpid())
