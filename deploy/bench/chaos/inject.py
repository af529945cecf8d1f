"""Carries a schedule of faults out: signals to processes, files for workers, orders to links."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from deploy.bench.chaos.faults import Fault, FaultKind
from deploy.bench.chaos.stack import ChaosStack
from deploy.bench.chaos.watch import Watch, state_of

_RUNS = frozenset("RSD")
_READY_TIMEOUT_S = 180.0
"""For a process to come back from the fault before; then the next one is left out, and told."""


class Injected(msgspec.Struct, frozen=True):
    """A fault that was injected, and when by both clocks."""

    fault: Fault
    at: float
    """Monotonic seconds."""
    wall: float


class Injector:
    """Owns what is broken at the moment, so that it can be healed at the end."""

    def __init__(self, stack: ChaosStack, watch: Watch, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._watch = watch
        self._say = say
        self._lasting: list[asyncio.Task[None]] = []
        self.injected: list[Injected] = []
        self.left_out: list[str] = []
        """Faults that could not be injected, in words."""

    async def run(self, faults: Sequence[Fault], started: float) -> None:
        """Injects each at its time; returns after the last, whose effect may last longer."""
        for fault in faults:
            await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
            await self._inject(fault)

    async def heal(self) -> None:
        """Waits for everything that lasts to be over. Raises what went wrong with that."""
        await asyncio.gather(*self._lasting)

    async def _inject(self, fault: Fault) -> None:
        try:
            pid = await self._pid_of(fault.target) if fault.target not in self._stack.links else 0
        except TimeoutError:
            self.left_out.append(f"{fault.kind} was left out: {fault.target} was not back after {_READY_TIMEOUT_S:g} s")
            return
        self._say(f"{fault.kind} of {fault.target}")
        self.injected.append(Injected(fault, time.monotonic(), time.time()))
        match fault.kind:
            case FaultKind.WORKER_KILL | FaultKind.SCHEDULER_KILL | FaultKind.GATEWAY_KILL:
                os.kill(pid, signal.SIGKILL)
            case FaultKind.DRAIN:
                os.kill(pid, signal.SIGTERM)
            case FaultKind.WORKER_STOP:
                os.kill(pid, signal.SIGSTOP)
                self._later(fault.duration_s, lambda: _continue(pid))
            case FaultKind.STEP_THROW:
                _order_throw(self._stack.fault_files[fault.target], pid)
            case FaultKind.LINK_DELAY | FaultKind.LINK_RESET | FaultKind.LINK_PARTITION:
                link = self._stack.links[fault.target]
                await link.begin(fault)
                self._later(fault.duration_s, lambda: link.end(fault))

    def _later(self, pause_s: float, act: Callable[[], Awaitable[None]]) -> None:
        async def wait() -> None:
            await asyncio.sleep(pause_s)
            await act()

        self._lasting.append(asyncio.create_task(wait()))

    async def _pid_of(self, name: str) -> int:
        """The process of that name, once it is one that can be hurt: another fault may have hit it just now.

        Raises TimeoutError.
        """
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while True:
                pid = self._watch.pids[name]
                if self._watch.is_ready(name) and state_of(pid) in _RUNS:
                    return pid
                await asyncio.sleep(0.05)


def _order_throw(file: Path, pid: int) -> None:
    Path(f"{file}.{pid}").write_text("throw")


async def _continue(pid: int) -> None:
    if state_of(pid) == "T":
        os.kill(pid, signal.SIGCONT)
