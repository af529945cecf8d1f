"""What nobody can read or keep does not stop the one who says it."""

import io
import json
import os
import subprocess
import sys

from chairlift.runtime.line_stream import LineStream

_PROGRAM = """
import os, sys
import structlog
from chairlift.runtime.settings import TelemetrySettings
from chairlift.runtime.telemetry import configure_logging
configure_logging(TelemetrySettings(log_format="json"), "test")
log = structlog.get_logger()
log.info("first")
kept = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
log.info("second")
log.error("third")
os.dup2(kept, 2)
log.info("fourth")
log.info("fifth")
log.info("sixth")
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
log.info("seventh")
"""


def test_a_full_disk_costs_lines_and_the_next_one_says_how_many() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    found = [(event["event"], event.get("lost_lines")) for event in map(json.loads, done.stderr.splitlines())]
    assert found == [("first", None), ("fourth", 2), ("fifth", None), ("sixth", None)]


def test_a_reader_that_has_gone() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        stream = LineStream(file)
        stream.write("heard\n")
        assert os.read(reader, 100) == b"heard\n"
        os.close(reader)
        assert stream.write("a\n") == 2
        stream.write("b\n")
        assert stream.num_lost == 2


def test_a_pipe_that_is_full_and_does_not_wait() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(writer, "w", encoding="utf-8") as file, os.fdopen(reader, "rb"):
        stream = LineStream(file)
        stream.write("x" * (1 << 20))
        assert stream.num_lost == 1


def test_a_character_that_the_terminal_has_not() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as file, os.fdopen(reader, "rb") as told:
        LineStream(file).write("a·b\n")
        assert told.readline() == b"a\\xb7b\n"


def test_what_is_closed_or_was_never_there() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (LineStream(None), LineStream(closed)):
        stream.write("x\n")
        assert (stream.num_lost, stream.isatty()) == (1, False)
