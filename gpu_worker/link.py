"""The worker's end of the worker link: greeting, receiving plans, sending results. Knows no model.

The scheduler binds; this side connects and reconnects, and greets again when a scheduler that does not know it asks.
"""

import enum
import os
import socket as host_socket
import time
from collections import deque

import structlog
import zmq

from chairlift.ipc import device
from chairlift.ipc.codec import MalformedMessageError
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, HelloRefused, HelloWanted, is_compatible
from chairlift.runtime.build import process_facts
from chairlift.runtime.pulse import Pulse
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import has_message
from chairlift.runtime.telemetry import set_log_level
from gpu_worker.heartbeat import Progress

_MAX_PENDING_PLANS = 16
"""Plans taken off the socket before they are carried out; a scheduler has two in flight."""

Outgoing = (
    device.WorkerHello
    | device.WorkerBeat
    | device.StepDone
    | device.StepFailed
    | device.NeedSnapshot
    | device.WorkerBye
)


class Standing(enum.Enum):
    """How the scheduler sees this worker."""

    UNKNOWN = "waiting for the scheduler"
    GREETED = "greeted"
    REFUSED = "refused by the scheduler"


class SchedulerLink:
    """The main socket. Not thread-safe."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        geometry: device.Geometry,
        worker_epoch: int,
        settings: IpcSettings,
        progress: Progress,
    ) -> None:
        """Beats while no step is in work, by `progress`; what beats meanwhile is not this."""
        max_bytes = settings.max_message_bytes
        self._socket = socket
        self._geometry = geometry
        self._epoch = worker_epoch
        self._timeout_s = settings.heartbeat_timeout_s
        self._incoming = device.to_worker_codec(max_bytes)
        self._outgoing = device.to_scheduler_codec(max_bytes)
        self._plans: deque[device.Plan] = deque()
        self._hello_at: float | None = None
        self._interval_s = settings.heartbeat_interval_s
        self._progress = progress
        self._pulse = Pulse(settings, time.monotonic())
        self._started_ns = time.monotonic_ns()
        self._log = structlog.get_logger()
        self.standing = Standing.UNKNOWN
        self.malformed = 0
        """Frames dropped because they were no message of this link."""

    @property
    def is_heard(self) -> bool:
        """Whether the scheduler has greeted this worker and is not silent since."""
        return self.standing is Standing.GREETED and not self._pulse.is_silent(time.monotonic())

    def receive(self) -> None:
        """Takes what has arrived, without waiting; plans queue for `next_plan`."""
        while len(self._plans) < _MAX_PENDING_PLANS and has_message(self._socket):
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 1:
                self._count_malformed(f"{len(frames)} frames")
                continue
            try:
                message = self._incoming.decode(frames[0])
            except MalformedMessageError as error:
                self._count_malformed(str(error))
                continue
            self._pulse.hear(time.monotonic())
            self._take(message)
        self._greet_if_due()

    @property
    def patience_s(self) -> float:
        """How long the loop may wait for a message: something is due then."""
        if self.standing is not Standing.GREETED:
            return self._interval_s
        now = time.monotonic()
        return max(0.0, self._pulse.next_at(now) - now)

    def beat_if_due(self) -> None:
        """Tells that this process lives, where nothing has asked for it for long."""
        if self.standing is Standing.GREETED and self._pulse.is_due(time.monotonic()):
            self._beat()

    def next_plan(self) -> device.Plan | None:
        """The oldest plan not yet carried out."""
        return self._plans.popleft() if self._plans else None

    def send(self, message: Outgoing) -> bool:
        """Whether it was queued; False when no scheduler is there. A result that is lost so is planned again."""
        self._pulse.end_rest(time.monotonic())
        return self._send(message)

    def _send(self, message: Outgoing) -> bool:
        try:
            self._socket.send(self._outgoing.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def reconnect(self) -> None:
        """The connection was lost, and with it whatever was on its way: both ends begin anew with a hello."""
        if self.standing is not Standing.REFUSED:
            self._plans.clear()
            self.standing, self._hello_at = Standing.UNKNOWN, None

    def _take(self, message: object) -> None:
        match message:
            case device.Plan():
                self._plans.append(message)
            case device.SchedulerGreeting(major=major, minor=minor, epoch=epoch):
                self._log.info("scheduler_greeted", scheduler_epoch=epoch, protocol=f"{major}.{minor}")
                self.standing = Standing.GREETED if is_compatible(major) else Standing.REFUSED
            case device.LogLevel(level):
                self._change_log_level(level)
            case device.SchedulerBeat(next_in_ns=next_in_ns):
                now = time.monotonic()
                self._pulse.rest(now, next_in_ns)
                if self._pulse.is_answer_due(now):
                    self._beat()
            case HelloWanted():
                self._forget_scheduler()
            case HelloRefused(reason=reason, message=text):
                self._log.error("refused_by_scheduler", reason=reason, message=text)
                self.standing = Standing.REFUSED
            case _:
                pass

    def _beat(self) -> None:
        self._pulse.beat(time.monotonic())
        if self._progress.in_work is None:
            self._send(self._progress.beat(self._epoch))

    def _change_log_level(self, level: str) -> None:
        try:
            set_log_level(level)
        except ValueError:
            self._count_malformed("no log level")

    def _forget_scheduler(self) -> None:
        """A scheduler that does not know this worker asked for a hello."""
        # It may have asked several times before the hello arrived, and takes a second one for a new life.
        if self.standing is Standing.GREETED or not self._has_greeted_just_now:
            self._plans.clear()
            self.standing, self._hello_at = Standing.UNKNOWN, None

    @property
    def _has_greeted_just_now(self) -> bool:
        return self._hello_at is not None and time.monotonic() - self._hello_at < self._timeout_s

    def _greet_if_due(self) -> None:
        """Says hello, and again when a hello stays unanswered for long: it may have been lost with a connection."""
        if self.standing is Standing.UNKNOWN and not self._has_greeted_just_now and self.send(self._hello()):
            self._hello_at = time.monotonic()

    def _hello(self) -> device.WorkerHello:
        return device.WorkerHello(
            PROTOCOL_MAJOR,
            PROTOCOL_MINOR,
            self._incoming.tags,
            self._epoch,
            rank=0,
            world_size=1,
            geometry=self._geometry,
            pid=os.getpid(),
            host=host_socket.gethostname(),
            process=process_facts(self._epoch, self._started_ns),
        )

    def _count_malformed(self, why: str) -> None:
        self.malformed += 1
        self._log.warning("malformed_message", reason=why, count=self.malformed)
