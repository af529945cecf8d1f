"""A supervisor in a process of its own meets signals: no child outlives it, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

SUPERVISE = Path(__file__).with_name("supervise.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(stand_ins: Any) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*specs: str, ready: str = "all ready\n", log: IO[str] | None = None) -> "subprocess.Popen[str]":
        command = [sys.executable, str(SUPERVISE), str(stand_ins.log), *specs]
        supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(supervisor)
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == ready
        return supervisor

    yield start
    for supervisor in started:
        supervisor.kill()
        supervisor.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_signal_drains_and_exits_0(start: Start, stand_ins: Any, number: signal.Signals) -> None:
    supervisor = start("gateway:serve:1:0", "worker:serve:0:1")
    supervisor.send_signal(number)
    assert supervisor.wait(60) == 0
    assert stand_ins.events()[-2:] == ["gateway end", "worker end"]
    assert stand_ins.alive() == []


def test_second_ctrl_c_ends_at_once(start: Start, stand_ins: Any) -> None:
    """The child ignores SIGTERM and has a minute to drain; an impatient user does not wait for it."""
    supervisor = start("worker:stubborn:0:0")
    supervisor.send_signal(signal.SIGINT)
    while supervisor.poll() is None:
        supervisor.send_signal(signal.SIGINT)
        try:
            supervisor.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    assert supervisor.returncode == 128 + signal.SIGINT
    assert stand_ins.alive() == []


def test_children_die_with_a_supervisor_that_is_killed(
    start: Start, stand_ins: Any, wait_until: Callable[..., None]
) -> None:
    supervisor = start("gateway:serve:1:0", "worker:stubborn:0:1")
    assert len(stand_ins.alive()) == 2
    supervisor.kill()
    supervisor.wait(60)
    wait_until(lambda: stand_ins.alive() == [], "the children's end")


def test_a_log_that_cannot_be_written_keeps_nobody_from_being_started_again(
    start: Start, stand_ins: Any, wait_until: Callable[..., None]
) -> None:
    with Path("/dev/full").open("w") as full:
        supervisor = start("worker:serve:0:0", log=full)
    os.kill(stand_ins.pids()[0], signal.SIGKILL)
    wait_until(lambda: len(stand_ins.pids()) == 2, "another worker")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == 0
    assert stand_ins.alive() == []


def test_crash_loop_ends_the_supervisor_with_a_failure(start: Start, stand_ins: Any) -> None:
    supervisor = start("worker:crash:0:0", "scheduler:serve:0:1", ready="")
    assert supervisor.wait(60) == 1
    assert stand_ins.alive() == []
