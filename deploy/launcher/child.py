"""One child process: how it is started, what its end meant, how it is stopped with all that it started.

Children live in sessions of their own, so that a Ctrl-C in the terminal reaches the supervisor alone, which drains
them in order. They die with the supervisor (`chairlift.runtime.process.die_with_parent`): it hands them its id. That
they live they show in memory that both share (`chairlift.runtime.life_sign`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.aside import run_aside
from chairlift.runtime.life_sign import LIFE_SIGN_ENV, LifeSign, open_life_sign_memory
from chairlift.runtime.process import PARENT_PID_ENV, ExitCode


class Launch(msgspec.Struct, frozen=True):
    """What one start of a child needs."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    probe: Address
    """Its HTTP port with ``/readyz`` and ``/livez``."""


class ChildSpec(msgspec.Struct, frozen=True):
    """A child to keep running."""

    name: str
    """For people: ``worker``, ``gateway 1``."""
    start_stage: int
    """Children of a stage start when those of lower ones are ready."""
    stop_stage: int
    """Children of a stage are asked to end when those of lower ones have ended."""
    stop_timeout_s: float
    """Time from SIGTERM to SIGKILL."""
    prepare: Callable[[], Launch]
    """Called before each start: a port may have been taken by another program meanwhile."""
    count_excused: Callable[[], Awaitable[int | None]] | None = None
    """How many of its ends, over all its lives, were brought about by what it was asked to do and no longer is.

    None while nobody says.
    """


class ChildProcess:
    """A started child."""

    def __init__(self, spec: ChildSpec, launch: Launch, process: asyncio.subprocess.Process, sign: LifeSign) -> None:
        self.spec = spec
        self.launch = launch
        self.was_ready = False
        self._process = process
        self._sign = sign

    @classmethod
    async def start(cls, spec: ChildSpec) -> "ChildProcess":
        """Starts one. What it writes goes to this process's stderr. Raises OSError when it cannot be started."""
        launch = spec.prepare()
        descriptor = open_life_sign_memory()
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                env={**launch.environ, PARENT_PID_ENV: str(os.getpid()), LIFE_SIGN_ENV: str(descriptor)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
                pass_fds=(descriptor,),
            )
            return cls(spec, launch, process, LifeSign(descriptor))
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Its process id, which is also its session's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def lives_until(self) -> float:
        """Until when its own loop has shown that it turns (monotonic seconds); 0 before it has begun to."""
        return self._sign.until

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still by SIGSTOP or the like, and so cannot answer (Linux; elsewhere it is not known)."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return self.is_running and stat[stat.rindex(")") + 2 :].startswith("T")

    async def wait_stopped(self) -> bool:
        """Whether it stands still now, once it does; False once it has ended. Where nobody knows, never returns."""
        if not hasattr(os, "waitid"):
            await asyncio.get_running_loop().create_future()
        return await run_aside(lambda: _wait_stopped(self.pid), "stopped")

    async def wait(self) -> int:
        """Its exit code, or minus the signal that killed it. What is left of its session is killed."""
        code = await self._process.wait()
        self._signal_session(signal.SIGKILL)
        return code

    def terminate(self) -> None:
        """Asks it to drain and end."""
        if self.is_running:
            self._process.terminate()

    def kill(self) -> None:
        """Ends it and all that it started, at once."""
        if self.is_running:
            self._signal_session(signal.SIGKILL)

    def _signal_session(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left (macOS answers EPERM where only zombies are)


def _wait_stopped(pid: int) -> bool:
    try:
        # Leaves its end for whoever reaps it.
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None and found.si_code == os.CLD_STOPPED


def describe_end(code: int) -> str:
    """An exit code in words, for instance ``killed by SIGKILL``."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exited with code {code}"


def can_restart_help(code: int) -> bool:
    """Whether another start may end differently: not after a usage, settings or model error."""
    return code not in (ExitCode.USAGE, ExitCode.MODEL)
