"""The heartbeat thread: while steps are in work it tells the scheduler that this process lives and how far it is.

A step that is stuck (a device that hangs, a deadlock in native code) never gives the main thread back, so this thread
ends the process: its riders go on with the next one. Without a step it sleeps, and the main thread tells.
"""

import os
import threading
import time
from collections import deque
from typing import NamedTuple

import structlog
import zmq

from chairlift.ipc import device
from chairlift.runtime.probes import ProcessState
from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import connect_dealer


class StepInWork(NamedTuple):
    """The oldest step that has no result yet."""

    since_ns: int
    """Monotonic time at which it began, or the one before it ended."""
    patience_ns: int
    """How long it may take before it counts as stuck."""

    def busy_ns(self) -> int:
        """How long it has been running."""
        return max(0, time.monotonic_ns() - self.since_ns)


class Progress:
    """Written by the main thread, read by the heartbeat's. Single values, so that no lock is needed."""

    def __init__(self) -> None:
        self.last_step = 0
        self.in_work: StepInWork | None = None
        """None when idle."""
        self._patience_ns: deque[int] = deque()
        """Of each plan in flight."""
        self._is_working = threading.Event()

    def began(self, patience_ns: int) -> None:
        """A plan is about to be carried out, behind those in flight."""
        self._patience_ns.append(patience_ns)
        if self.in_work is None:
            self.in_work = StepInWork(time.monotonic_ns(), patience_ns)
            if not self._is_working.is_set():
                self._is_working.set()

    def ended(self, busy_since_ns: int | None) -> None:
        """The oldest plan in flight has its result. The next one is in work since `busy_since_ns`; None: none is."""
        self._patience_ns.popleft()
        self.in_work = None if busy_since_ns is None else StepInWork(busy_since_ns, self._patience_ns[0])

    def wait_for_work(self, stop: threading.Event) -> None:
        """Until a step is in work, or `end_wait` after `stop` was set. By the heartbeat's thread alone."""
        self._is_working.clear()
        # What happens from here on sets the event.
        if self.in_work is None and not stop.is_set():
            self._is_working.wait()

    def end_wait(self) -> None:
        """Lets the heartbeat's thread go on."""
        self._is_working.set()

    def beat(self, worker_epoch: int) -> device.WorkerBeat:
        """What there is to tell."""
        step = self.in_work
        return device.WorkerBeat(worker_epoch, 0, self.last_step, 0 if step is None else step.busy_ns())


STUCK_FACTOR = 10
"""Times its expected time that a step may take."""


def patience_ns(expected_ns: int, largest_step_ns: int, min_s: float) -> int:
    """How long a step may take that should take `expected_ns`, or, where that is not known yet (0), as long as the
    largest one took.
    """
    return max(round(min_s * 1e9), STUCK_FACTOR * (expected_ns if expected_ns > 0 else largest_step_ns))


class StepWatch:
    """Whether a step is stuck, by the time that its watcher has seen pass: while the machine or the whole process stood
    still, nothing could go on.
    """

    def __init__(self, interval_ns: int) -> None:
        """`interval_ns`: how often the watcher looks. A look that is later than twice that has seen less."""
        self._interval_ns = interval_ns
        self._looked_ns = 0
        self._since_ns = 0
        self._unseen_ns = 0

    def is_stuck(self, step: StepInWork, now: int) -> bool:
        """The watcher looks now, in monotonic nanoseconds."""
        if step.since_ns != self._since_ns:
            self._since_ns, self._unseen_ns = step.since_ns, 0
        self._unseen_ns += max(0, now - max(self._looked_ns, step.since_ns) - 2 * self._interval_ns)
        self._looked_ns = now
        return now - step.since_ns - self._unseen_ns > step.patience_ns


class Heartbeat:
    """A thread with a socket of its own. Beats while `is_greeted` is set and a step is in work, until closed."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        settings: IpcSettings,
        identity: bytes,
        worker_epoch: int,
        progress: Progress,
        state: ProcessState,
    ) -> None:
        """`state` is told that the process lives while a step is in work and not stuck."""
        self.is_greeted = threading.Event()
        self._interval_s = settings.heartbeat_interval_s
        self._epoch = worker_epoch
        self._progress = progress
        self._state = state
        self._watch = StepWatch(round(settings.heartbeat_interval_s * 1e9))
        self._codec = device.to_scheduler_codec(settings.max_message_bytes)
        self._stop = threading.Event()
        # Made here and handed over once: the thread alone uses it from its start on.
        self._socket = connect_dealer(context, endpoint, settings, identity + device.BEAT_SUFFIX)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes its socket."""
        self._stop.set()
        self._progress.end_wait()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                self._end_if_stuck()
                if self.is_greeted.is_set():
                    self._beat()
                self._progress.wait_for_work(self._stop)
        finally:
            self._socket.close()

    def _end_if_stuck(self) -> None:
        step = self._progress.in_work
        if step is None:
            return
        if not self._watch.is_stuck(step, time.monotonic_ns()):
            self._state.turned()
        else:
            seconds, limit = round(step.busy_ns() / 1e9, 1), round(step.patience_ns / 1e9, 1)
            structlog.get_logger().error(
                "step_stuck", after_step=self._progress.last_step, seconds=seconds, limit=limit
            )
            os._exit(ExitCode.FAILED)

    def _beat(self) -> None:
        try:
            self._socket.send(self._codec.encode(self._progress.beat(self._epoch)), zmq.NOBLOCK)
        except zmq.Again:
            return  # no scheduler is there; the next beat tells it as well
