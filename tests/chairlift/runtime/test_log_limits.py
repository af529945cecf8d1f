"""Warnings that repeat, and what libraries log."""

import json
import logging

import pytest
import structlog

from chairlift.runtime.log_limits import WARNINGS_A_WINDOW, WINDOW_S, LibraryLogs, WarningLimit


def _passes(limit: WarningLimit, method: str, event: str) -> dict[str, object] | None:
    try:
        return dict(limit(None, method, {"event": event}))
    except structlog.DropEvent:
        return None


def test_a_warning_that_repeats_is_limited_and_says_how_often_it_was_not_written() -> None:
    now = 100.0
    limit = WarningLimit(lambda: now)
    passed = [_passes(limit, "warning", "peer_gone") for _ in range(WARNINGS_A_WINDOW + 7)]
    assert sum(event is not None for event in passed) == WARNINGS_A_WINDOW
    assert _passes(limit, "warning", "another") == {"event": "another"}
    assert _passes(limit, "error", "peer_gone") == {"event": "peer_gone"}
    now += WINDOW_S
    assert _passes(limit, "warning", "peer_gone") == {"event": "peer_gone", "suppressed": 7}
    assert _passes(limit, "warning", "peer_gone") == {"event": "peer_gone"}


def test_a_library_log_is_one_event_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    try:
        record = logging.LogRecord(
            "opentelemetry.x", logging.ERROR, "", 1, "cannot send to %s\ndetails", ("here",), None
        )
        LibraryLogs().emit(record)
    finally:
        structlog.reset_defaults()
    assert json.loads(capsys.readouterr().out) == {
        "event": "library_logged",
        "logger": "opentelemetry.x",
        "message": "cannot send to here",
    }


def test_errors_of_a_library_are_limited_too(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    now = 100.0
    try:
        logs = LibraryLogs(lambda: now)
        for logger, count in (("asyncio", WARNINGS_A_WINDOW + 5), ("another", 1)):
            for _ in range(count):
                logs.emit(logging.LogRecord(logger, logging.ERROR, "", 1, "out of descriptors", None, None))
        now += WINDOW_S
        logs.emit(logging.LogRecord("asyncio", logging.ERROR, "", 1, "out of descriptors", None, None))
    finally:
        structlog.reset_defaults()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["logger"] for event in told] == ["asyncio"] * WARNINGS_A_WINDOW + ["another", "asyncio"]
    assert told[-1]["suppressed"] == 5
