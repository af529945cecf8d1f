"""The life of a process: exit codes, stop signals, the parent's death, epochs.

Each of the three processes and the supervisor runs by it. Knows no sockets and no messages.
"""

import ctypes
import enum
import os
import resource
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from chairlift.runtime.libc import libc_function

PARENT_PID_ENV = "CHAIRLIFT_PARENT_PID"
"""Set by a supervisor that wants its children to die with it: its own process id."""

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class ExitCode(enum.IntEnum):
    """What a process's end means to its supervisor."""

    OK = 0
    FAILED = 1
    """A fault at run time: a restart may help."""
    USAGE = 2
    """Arguments or settings: a restart does not help."""
    MODEL = 3
    """The model cannot be found, read or run here: a restart does not help."""


class StopSignal:
    """Turns SIGTERM and SIGINT into a flag and a readable file descriptor, for a poller to wake on.

    `requested` becomes true at the first signal; a second SIGINT or SIGTERM ends the process at once.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self.requested = False

    def fileno(self) -> int:
        """Readable once a stop was requested."""
        return self._reader

    def request(self) -> None:
        """Asks the process to stop, as a first signal does."""
        if not self.requested:
            self.requested = True
            os.write(self._writer, b"x")

    def close(self) -> None:
        """Frees both file descriptors."""
        os.close(self._reader)
        os.close(self._writer)

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """A signal writes to the pipe by itself: Python's handler has no turn once a poller has begun to wait."""
        earlier = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(earlier)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.request()


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """While it lasts, SIGTERM and SIGINT request a stop. Main thread only; earlier handlers come back at the end."""
    stop = StopSignal()
    numbers = (signal.SIGTERM, signal.SIGINT)
    earlier = {number: signal.signal(number, stop._on_signal) for number in numbers}
    try:
        with stop._hearing_signals():
            yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        stop.close()


def die_with_parent() -> None:
    """Makes the kernel kill this process when the supervisor that started it dies (Linux).

    Does nothing unless the supervisor asked for it by ``CHAIRLIFT_PARENT_PID``. Call before any thread is started:
    the kernel ties the request to the parent's thread that made us. A parent that died before the call is noticed.
    """
    expected = os.environ.get(PARENT_PID_ENV)
    if not expected:
        return
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(expected):
        raise SystemExit(f"the parent process {expected} is gone")


@contextmanager
def patient_threads(slack_s: float) -> Iterator[None]:
    """Lets threads that this one starts meanwhile, and those that they start, be woken so much later than they ask for.

    The kernel then wakes them together. Whatever happens wakes them at once as ever. It is advice: a system that does
    not know it (none but Linux does) goes on as before.
    """
    _set_timer_slack(round(slack_s * 1e9))
    try:
        yield
    finally:
        # 0: back to what this thread began with.
        _set_timer_slack(0)


def _set_timer_slack(slack_ns: int) -> None:
    if sys.platform == "linux" and (control := libc_function("prctl")) is not None:
        control(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)


def allow_descriptors(count: int) -> None:
    """Raises this process's limit of open files to `count`, or as far as it may. A larger one stays.

    The usual 1,024 are the connections that one client may have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def new_epoch() -> int:
    """A number for this life of a process: random, so that no clock or file is needed to never repeat one."""
    return secrets.randbits(53) | 1
