"""The level of logs changes while a process runs; audit lines are always written."""

import logging
import os
import subprocess
import sys

import pytest

from chairlift.runtime.telemetry import set_log_level

_PROGRAM = """
import structlog
from chairlift.runtime.settings import TelemetrySettings
from chairlift.runtime.telemetry import configure_logging, log_level, set_log_level
configure_logging(TelemetrySettings(log_level="warning", log_format="json"), "test")
log = structlog.get_logger()
log.info("hidden-1")
log.info("audit", who="ann")
log.warning("shown-1")
set_log_level("debug")
log.debug("shown-2")
set_log_level("error")
log.warning("hidden-2")
log.info("audit", who="bob")
log.error("shown-3", level=log_level())
"""


def test_loggers_that_are_in_use_follow() -> None:
    """structlog keeps what a logger was made with: a change of its configuration alone would reach new ones only."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert "hidden" not in done.stderr
    assert [done.stderr.count(word) for word in ("shown-1", "shown-2", "shown-3", "audit")] == [1, 1, 1, 2]


def test_what_is_no_level_is_refused() -> None:
    before = logging.getLogger("chairlift").level
    with pytest.raises(ValueError, match="LOUD"):
        set_log_level("loud")
    assert logging.getLogger("chairlift").level == before
