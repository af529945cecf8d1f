"""The heartbeat thread: tells the scheduler that this process lives and how far it is, whatever the main one does."""

import threading
import time

import zmq

from chairlift.ipc import device
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import connect_dealer


class Progress:
    """Written by the main thread, read by the heartbeat's. Single values, so that no lock is needed."""

    def __init__(self) -> None:
        self.last_step = 0
        self.step_started_ns: int | None = None
        """Monotonic time at which the step in work began; None when idle."""

    def busy_ns(self) -> int:
        """How long the step in work has been running; 0 when idle."""
        started = self.step_started_ns
        return 0 if started is None else max(0, time.monotonic_ns() - started)


class Heartbeat:
    """A thread with a socket of its own. Beats while `is_greeted` is set, until closed."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        settings: IpcSettings,
        identity: bytes,
        worker_epoch: int,
        progress: Progress,
    ) -> None:
        self.is_greeted = threading.Event()
        self._interval_s = settings.heartbeat_interval_s
        self._epoch = worker_epoch
        self._progress = progress
        self._codec = device.to_scheduler_codec(settings.max_message_bytes)
        self._stop = threading.Event()
        # Made here and handed over once: the thread alone uses it from its start on.
        self._socket = connect_dealer(context, endpoint, settings, identity + device.BEAT_SUFFIX)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes its socket."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                if self.is_greeted.is_set():
                    self._beat()
        finally:
            self._socket.close()

    def _beat(self) -> None:
        beat = device.WorkerBeat(self._epoch, 0, self._progress.last_step, self._progress.busy_ns())
        try:
            self._socket.send(self._codec.encode(beat), zmq.NOBLOCK)
        except zmq.Again:
            return  # no scheduler is there; the next beat tells it as well
