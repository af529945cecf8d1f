"""What the processes of the stack say and use while it runs: their ids, their ends, their logs, their memory."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from deploy.launcher.liveness import Silence
from deploy.launcher.progress import Progress

MEMORY_INTERVAL_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Noticed(msgspec.Struct, frozen=True):
    """Somebody noticed that something is wrong."""

    at: float
    """Seconds of the wall clock."""
    what: str
    who: str


class Watch(Progress):
    """The supervisor's reports: ids of the processes as they come, and when an end or a hang was noticed."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(verbose=False)
        self._say = say
        self.pids: dict[str, int] = {}
        self.all_pids: list[int] = []
        self._ready: set[str] = set()
        self.noticed: list[Noticed] = []

    def started(self, name: str, pid: int) -> None:
        """See `Progress`."""
        super().started(name, pid)
        self._ready.discard(name)
        self.pids[name] = pid
        self.all_pids.append(pid)

    def ready(self, name: str) -> None:
        """See `Progress`."""
        super().ready(name)
        self._ready.add(name)

    def is_ready(self, name: str) -> bool:
        """Whether it has become ready in its present life, as far as is known."""
        return name in self._ready

    def restarting(self, name: str, how_it_ended: str, pause_s: float) -> None:
        """See `Progress`."""
        self._ready.discard(name)
        self.noticed.append(Noticed(time.time(), "restarting", name))
        super().restarting(name, how_it_ended, pause_s)

    def hung(self, name: str, silence: Silence, reason: str) -> None:
        """See `Progress`."""
        self.noticed.append(Noticed(time.time(), "hung", name))
        super().hung(name, silence, reason)

    def say(self, text: str) -> None:
        """One line."""
        self._say(text)


@contextmanager
def stderr_to(file: Path) -> Iterator[int]:
    """Everything that this process's children write to stderr goes to `file`; yields the stderr of before."""
    before = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield before
    finally:
        os.dup2(before, 2)
        os.close(before)


_LOSSES = frozenset(
    {
        "worker_lost",
        "worker_reconnected",
        "gateway_lost",
        "scheduler_lost",
        "step_failed",
        "scheduler_draining",
        "gateway_draining",
    }
)


class _Line(msgspec.Struct):
    event: str = ""
    timestamp: str = ""
    process: str = ""


def read_losses(log: Path) -> list[Noticed]:
    """Lines of a JSON log in which a process notices a loss, in order."""
    found = []
    decoder = msgspec.json.Decoder(_Line)
    for text in log.read_bytes().splitlines():
        try:
            line = decoder.decode(text)
        except msgspec.MsgspecError:
            continue  # a warning of some library, or a traceback
        if line.event in _LOSSES:
            found.append(Noticed(_seconds(line.timestamp), line.event, line.process))
    return found


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


class MemorySample(msgspec.Struct, frozen=True):
    """Resident bytes of each process by its name."""

    at_s: float
    bytes_by_name: dict[str, int]


async def sample_memory(watch: Watch, samples: list[MemorySample], started: float) -> None:
    """Adds a sample now and then, until cancelled."""
    while True:
        # On a thread: the kernel may make a reader wait for a process that is busy with its memory.
        sizes = await asyncio.to_thread(_resident, dict(watch.pids))
        samples.append(MemorySample(round(time.monotonic() - started, 2), sizes))
        await asyncio.sleep(MEMORY_INTERVAL_S)


def _resident(pids: dict[str, int]) -> dict[str, int]:
    """Bytes in memory by name, of those that live."""
    sizes = {}
    for name, pid in pids.items():
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue  # it has just died
        if pages:
            sizes[name] = pages * _PAGE_BYTES
    return sizes


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does (R, S, D, T, Z …); empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a zombie."""
    return state_of(pid) not in ("", "Z", "X")


def find_leftovers(folder: Path, pids: list[int]) -> list[int]:
    """Processes that outlived the stack: of those that it started, and any whose command line names its folder."""
    found = {pid for pid in pids if is_alive(pid)}
    mark = str(folder).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "cmdline").read_bytes() and is_alive(int(entry.name)):
                found.add(int(entry.name))
        except OSError:
            continue  # gone meanwhile, or another user's
    return sorted(found)
