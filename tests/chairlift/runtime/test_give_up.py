"""A process's last line: one line of the error, also of an error that says nothing."""

import pytest
from structlog.testing import capture_logs

from chairlift.runtime.process import ExitCode
from chairlift.runtime.telemetry import give_up


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("port is taken\ndetails"), "port is taken"),
        (MemoryError(), "MemoryError"),
        (ValueError(""), "ValueError"),
    ],
)
def test_the_first_line_or_the_kind(error: Exception, reason: str) -> None:
    with capture_logs() as logs:
        assert give_up(ExitCode.MODEL, "model_cannot_be_served", error) is ExitCode.MODEL
    assert logs == [{"event": "model_cannot_be_served", "reason": reason, "log_level": "error"}]
