"""Stacks of stand-in children."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from chairlift.runtime.addresses import Address
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.ports import find_free
from deploy.launcher.progress import Progress

STAND_IN = Path(__file__).with_name("stand_in.py")


class StandIns(msgspec.Struct):
    """Makes specs of stand-ins and reads what happened to them."""

    log: Path
    output: io.StringIO
    progress: Progress

    def spec(
        self,
        name: str,
        behaviour: str = "serve",
        *,
        start_stage: int = 0,
        stop_stage: int = 0,
        stop_timeout_s: float = 60,
    ) -> ChildSpec:
        def prepare() -> Launch:
            probe = find_free(Address("127.0.0.1", 0))
            argv = (sys.executable, str(STAND_IN), str(probe.port), str(self.log), name, behaviour)
            return Launch(argv, dict(os.environ), probe)

        return ChildSpec(name, start_stage, stop_stage, stop_timeout_s, prepare)

    def events(self) -> list[str]:
        """``NAME start`` and ``NAME end`` in order."""
        return [" ".join(line.split()[:2]) for line in self._lines()]

    def pids(self) -> list[int]:
        """Of every process that was started."""
        return [int(words[2]) for line in self._lines() if (words := line.split())[1] == "start"]

    def alive(self) -> list[int]:
        """Which of them are left."""
        return [pid for pid in self.pids() if _is_alive(pid)]

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def _is_alive(pid: int) -> bool:
    """Zombies that nobody here can reap do not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    output = io.StringIO()
    return StandIns(tmp_path / "log", output, Progress(output))


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Polls a condition with a deadline."""
    import time

    def wait(condition: Callable[[], bool], what: str, within_s: float = 30) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
            time.sleep(0.02)

    return wait
