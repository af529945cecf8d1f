"""How the service has plans carried out: each one to its end, or a step launched while the one before it still runs.

Knows neither sockets nor kernels. What comes out is in the order of what went in.
"""

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from chairlift.ipc.device import NeedSnapshot, Plan, StepDone, StepFailed
from gpu_worker.results import Result

Finished = tuple[Plan, Result | None]


class Execution(Protocol):
    """Takes plans, gives results. One thread calls it."""

    @property
    def has_room(self) -> bool:
        """Whether `submit` may be called."""
        ...

    @property
    def busy_since_ns(self) -> int | None:
        """Monotonic time at which the oldest step in work was submitted, or the one before it ended; None when idle."""
        ...

    @property
    def wake_fd(self) -> int | None:
        """Becomes readable when a result may be there; None where `submit` returns with the result."""
        ...

    def submit(self, plan: Plan) -> None:
        """Begins a plan."""
        ...

    def finished(self) -> Iterator[Finished]:
        """Results that are there, without waiting. None is that of a plan that gets no answer."""
        ...

    def drain(self) -> Iterator[Finished]:
        """Waits for all that is in work."""
        ...

    def close(self) -> None:
        """Ends what it runs beside the caller."""
        ...


class Executor(Protocol):
    """A runner that carries a plan out while its caller waits."""

    def execute(self, plan: Plan) -> Result | None:
        """The result; None where the plan gets no answer."""
        ...


class SerialExecution:
    """One plan at a time."""

    wake_fd = None

    def __init__(self, runner: Executor) -> None:
        self._runner = runner
        self._finished: deque[Finished] = deque()

    @property
    def has_room(self) -> bool:
        """As `Execution.has_room`."""
        return not self._finished

    @property
    def busy_since_ns(self) -> int | None:
        """As `Execution.busy_since_ns`: nothing is in work between two calls."""
        return None

    def submit(self, plan: Plan) -> None:
        """As `Execution.submit`."""
        self._finished.append((plan, self._runner.execute(plan)))

    def finished(self) -> Iterator[Finished]:
        """As `Execution.finished`."""
        while self._finished:
            yield self._finished.popleft()

    def drain(self) -> Iterator[Finished]:
        """As `Execution.drain`."""
        return self.finished()

    def close(self) -> None:
        """As `Execution.close`: there is nothing."""


class Launched(Protocol):
    """A step on its way."""

    def is_done(self) -> bool:
        """Whether its result can be read without waiting."""
        ...

    def wait(self) -> None:
        """Until it is. Any thread may call this."""
        ...


LaunchedT = TypeVar("LaunchedT", bound=Launched)


@runtime_checkable
class Launcher(Protocol[LaunchedT]):
    """A runner that need not wait for a step before it begins the next."""

    @property
    def most_in_flight(self) -> int:
        """Steps that may lie between launch and finish."""
        ...

    def launch(self, plan: Plan) -> LaunchedT | Result | None:
        """Begins a plan; a result at once where there is nothing to wait for."""
        ...

    def finish(self, pending: LaunchedT) -> Result | None:
        """The result of a step, in the order of launches; waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: Plan
    step: Launched | None
    result: Result | None
    """Of a plan that had its result at once."""


class OverlappedExecution:
    """Keeps the device supplied: the next step is enqueued behind the one that runs, and results are read when done."""

    def __init__(self, runner: "Launcher[Any]") -> None:
        self._runner = runner
        self._most = runner.most_in_flight
        self._flight: deque[_InFlight] = deque()
        self._busy_since_ns: int | None = None
        self._watcher = _Watcher(self._most)

    @property
    def has_room(self) -> bool:
        """As `Execution.has_room`."""
        return len(self._flight) < self._most

    @property
    def busy_since_ns(self) -> int | None:
        """As `Execution.busy_since_ns`."""
        return self._busy_since_ns

    @property
    def wake_fd(self) -> int | None:
        """As `Execution.wake_fd`."""
        return self._watcher.fd

    def submit(self, plan: Plan) -> None:
        """As `Execution.submit`."""
        if self._busy_since_ns is None:
            self._busy_since_ns = time.monotonic_ns()
        match self._runner.launch(plan):
            case (StepDone() | StepFailed() | NeedSnapshot() | None) as result:
                self._flight.append(_InFlight(plan, None, result))
            case step:
                self._flight.append(_InFlight(plan, step, None))
                self._watcher.watch(step)

    def finished(self) -> Iterator[Finished]:
        """As `Execution.finished`."""
        self._watcher.clear()
        while self._flight:
            step = self._flight[0].step
            if step is not None and not step.is_done():
                return
            yield self._take()

    def drain(self) -> Iterator[Finished]:
        """As `Execution.drain`."""
        while self._flight:
            yield self._take()

    def close(self) -> None:
        """As `Execution.close`."""
        self._watcher.close()

    def _take(self) -> Finished:
        oldest = self._flight.popleft()
        result = oldest.result if oldest.step is None else self._runner.finish(oldest.step)
        self._busy_since_ns = time.monotonic_ns() if self._flight else None
        return oldest.plan, result


class _Watcher:
    """A thread that waits where the loop must not, and makes a pipe readable at each step that ends."""

    def __init__(self, most_watched: int) -> None:
        # One more for the end.
        self._steps: queue.Queue[Launched | None] = queue.Queue(most_watched + 1)
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def watch(self, step: Launched) -> None:
        """Wakes when the step is done. Steps end in the order in which they are watched."""
        self._steps.put(step)

    def clear(self) -> None:
        """Takes what wakes were written; before the look at what is done, so that none is missed."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        """Waits for the step in work, ends the thread."""
        self._steps.put(None)
        self._thread.join()
        os.close(self.fd)
        os.close(self._write_fd)

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            # Whoever reads the result meets the same error, and handles it.
            with contextlib.suppress(torch.AcceleratorError):
                step.wait()
            # A full pipe wakes the loop all the same.
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_fd, b"\0")
