"""One DEALER to one scheduler, on asyncio: handshake, heartbeats, loss, reconnection.

zmq's descriptor is edge-triggered: it becomes readable when something changed, not while something is there. Therefore
every wake drains the socket until it is empty, and every send looks whether an arrival was noticed on its way
(`zmq_getsockopt(3)`, ZMQ_FD). asyncio's own zmq sockets make a future a message, which is too slow here.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from typing import Protocol

import structlog
import zmq

from chairlift.ipc import front
from chairlift.ipc.codec import MalformedMessageError
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, HelloRefused, HelloWanted, is_compatible
from chairlift.runtime.pulse import Pulse
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import DisconnectWatch, connect_dealer

_MAX_MESSAGES_A_WAKE = 256
"""Bound on one drain, so that calls get their turn; the rest follows at once."""
_GREETING_INTERVAL_S = 0.02
_SHORTEST_PAUSE_S = 0.001
_REFUSED_PAUSE_S = 10.0
_LOG_EVERY = 1000


class LinkState(enum.Enum):
    """Where the link stands."""

    CONNECTING = enum.auto()
    """There is nobody to send to yet."""
    GREETING = enum.auto()
    """The hello is sent, the answer is not here."""
    ATTACHED = enum.auto()
    REFUSED = enum.auto()
    """The scheduler turned this gateway away; it is asked again after a pause, since it may change its model."""
    CLOSED = enum.auto()


TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.CONNECTING: frozenset({LinkState.GREETING, LinkState.CLOSED}),
    LinkState.GREETING: frozenset({LinkState.ATTACHED, LinkState.REFUSED, LinkState.CONNECTING, LinkState.CLOSED}),
    LinkState.ATTACHED: frozenset({LinkState.CONNECTING, LinkState.REFUSED, LinkState.CLOSED}),
    LinkState.REFUSED: frozenset({LinkState.CONNECTING, LinkState.CLOSED}),
    LinkState.CLOSED: frozenset(),
}


class LinkListener(Protocol):
    """Who is told what happens on a link. None of these may raise for what a peer sends."""

    def on_attached(self, link: "ReplicaLink") -> None:
        """The scheduler has answered the hello: what was there before on this link is void."""

    def on_lost(self, link: "ReplicaLink") -> None:
        """Nothing more comes on what was sent since the link was attached."""

    def on_changed(self, link: "ReplicaLink") -> None:
        """Readiness, draining or model is another now."""

    def on_malformed(self, link: "ReplicaLink") -> None:
        """Something came that is no message, or does not fit what came before."""

    def on_message(self, link: "ReplicaLink", message: front.ToGateway) -> None:
        """Anything else that the scheduler sends."""


class ReplicaLink:
    """The link to the scheduler at `endpoint`. Belongs to one event loop; `open` and `close` are called in it."""

    def __init__(
        self,
        endpoint: str,
        settings: IpcSettings,
        gateway_id: str,
        epoch: int,
        fingerprint: str,
        listener: LinkListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.state = LinkState.CONNECTING
        self.hello: front.SchedulerHello | None = None
        """Of the scheduler's life that is attached, or was last."""
        self.is_ready = False
        self.is_draining = False
        self.model: front.ModelInfo | None = None
        self.limits: front.ReplicaLimits | None = None
        self.load = front.Load()
        self.load_at = 0.0
        """When `load` came, by the clock."""
        self.why_refused = ""
        self.malformed = 0
        self._settings = settings
        self._gateway_id = gateway_id
        self._epoch = epoch
        self._fingerprint = fingerprint
        self._listener = listener
        self._clock = clock
        self._incoming = front.to_gateway_codec(settings.max_message_bytes)
        self._outgoing = front.to_scheduler_codec(settings.max_message_bytes)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._watch: DisconnectWatch | None = None
        self._fds: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._is_drain_due = False
        self._pulse = Pulse(settings, 0.0)
        self._greeted_at = 0.0
        self._refused_until = 0.0
        self._log = structlog.get_logger(endpoint=endpoint)

    @property
    def replica_id(self) -> str:
        """Name of the replica; empty until it has spoken once."""
        return self.hello.replica_id if self.hello is not None else ""

    @property
    def scheduler_epoch(self) -> int:
        """Life of the scheduler that is attached, or was last; 0 before the first."""
        return self.hello.epoch if self.hello is not None else 0

    @property
    def silence_s(self) -> float:
        """How long nothing has come that should have; not above 0 while the scheduler may rest."""
        return self._pulse.silence_s(self._clock())

    @property
    def is_attached(self) -> bool:
        """Whether messages can be sent."""
        return self.state is LinkState.ATTACHED

    def open(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        """Starts to connect. Raises EndpointError."""
        self._context = context
        self._connect()
        self._turn()

    def close(self) -> None:
        """Says goodbye, so that requests are detached at once, and frees the socket. A second time does nothing."""
        if self.state is LinkState.CLOSED:
            return
        if self.is_attached:
            self._send_now(front.GatewayBye(self._epoch))
        self._move(LinkState.CLOSED)
        self._disconnect(linger_ms=200)

    def send(self, message: front.ToScheduler) -> bool:
        """Whether the message was queued. False when nobody is attached, or the peer does not read: it is lost then."""
        if not self.is_attached:
            return False
        if self._pulse.end_rest(self._clock()):
            self._set_timer()
        return self._deliver(message)

    def _deliver(self, message: front.ToScheduler) -> bool:
        if self._send_now(message):
            return True
        self._lose("does not read")
        return False

    def fail(self, reason: str) -> None:
        """What came on this link makes no sense: everything on it is void, and it starts anew."""
        if self.is_attached:
            self._count_malformed()
            self._lose(reason)

    # ---- the socket ----

    def _connect(self) -> None:
        assert self._context is not None
        identity = f"{self._gateway_id}/{self._epoch:x}".encode()
        self._socket = connect_dealer(self._context, self.endpoint, self._settings, identity)
        self._watch = DisconnectWatch(self._socket)
        self._fds = self._socket.fileno(), self._watch.socket.fileno()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fds[0], self._drain)
        loop.add_reader(self._fds[1], self._on_disconnect)

    def _disconnect(self, linger_ms: int = 0) -> None:
        if self._socket is not None and self._watch is not None:
            for fd in self._fds:
                asyncio.get_running_loop().remove_reader(fd)
            self._watch.close()
            self._socket.close(linger=linger_ms)
            self._socket = self._watch = None

    def _on_disconnect(self) -> None:
        if self._watch is not None and self._watch.take():
            self._lose_when_drained()

    def _lose_when_drained(self) -> None:
        """What came before the end of the connection counts; what was on its way either way is lost."""
        self._drain()
        if self._is_drain_due:
            asyncio.get_running_loop().call_soon(self._lose_when_drained)
        elif self.is_attached:
            self._lose("disconnected")
        elif self.state is LinkState.GREETING:
            self._start_over()

    def _send_now(self, message: front.ToScheduler) -> bool:
        socket = self._socket
        if socket is None:
            return False
        try:
            socket.send(self._outgoing.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        # The send may have swallowed the wake of a message that has arrived meanwhile.
        if not self._is_drain_due and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._is_drain_due = True
            asyncio.get_running_loop().call_soon(self._drain)
        return True

    def _drain(self) -> None:
        self._is_drain_due = False
        for _ in range(_MAX_MESSAGES_A_WAKE):
            socket = self._socket
            if socket is None:
                return
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._take(frame)
        else:
            self._is_drain_due = True
            asyncio.get_running_loop().call_soon(self._drain)
        if self.state is LinkState.CONNECTING:
            self._greet()

    def _count_malformed(self) -> None:
        self.malformed += 1
        self._listener.on_malformed(self)

    def _take(self, frame: bytes) -> None:
        try:
            message = self._incoming.decode(frame)
        except MalformedMessageError as error:
            self._count_malformed()
            if self.malformed % _LOG_EVERY == 1:
                self._log.warning("malformed_message_dropped", count=self.malformed, detail=str(error))
            return
        now = self._clock()
        self._pulse.hear(now)
        match message:
            case front.SchedulerHello():
                self._on_hello(message)
            case HelloWanted():
                self._on_hello_wanted()
            case HelloRefused():
                self._on_refused(message)
            case _ if not self.is_attached:
                # What was on its way before the link was lost belongs to nobody any more.
                pass
            case front.ReplicaBeat(epoch, load, next_in_ns):
                if epoch == self.scheduler_epoch:
                    self.load, self.load_at = load, now
                    self._pulse.rest(now, next_in_ns)
                    if self._pulse.is_answer_due(now):
                        self._beat(now)
                        self._set_timer()
            case front.ReplicaState():
                self._on_replica_state(message)
            case _:
                self._listener.on_message(self, message)

    # ---- who is there ----

    def _greet(self) -> None:
        hello = front.GatewayHello(
            PROTOCOL_MAJOR, PROTOCOL_MINOR, self._incoming.tags, self._gateway_id, self._epoch, self._fingerprint
        )
        if self._send_now(hello):
            self._greeted_at = self._clock()
            self._move(LinkState.GREETING)

    def _on_hello(self, hello: front.SchedulerHello) -> None:
        if self.state is not LinkState.GREETING:
            return
        if not is_compatible(hello.major):
            self._refuse(f"the scheduler speaks protocol {hello.major}.{hello.minor}, this gateway {PROTOCOL_MAJOR}.x")
            return
        self.hello, self.why_refused = hello, ""
        self.is_ready, self.is_draining, self.model = hello.ready, hello.draining, hello.model
        self.limits = hello.limits
        self._pulse = Pulse(self._settings, self._clock())
        self._move(LinkState.ATTACHED)
        self._log.info("scheduler_attached", replica_id=hello.replica_id, epoch=hello.epoch, ready=hello.ready)
        self._listener.on_attached(self)

    def _on_hello_wanted(self) -> None:
        """It knows nothing of this gateway: it was started anew, or had given this gateway up."""
        if self.is_attached:
            self._become_lost("forgot this gateway")
            self._greet()

    def _on_refused(self, refusal: HelloRefused) -> None:
        if self.state in (LinkState.GREETING, LinkState.ATTACHED):
            self._refuse(refusal.message)

    def _refuse(self, reason: str) -> None:
        was_attached = self.is_attached
        if reason != self.why_refused:
            self._log.error("scheduler_refuses_gateway", reason=reason)
        self.why_refused = reason
        self._refused_until = self._clock() + _REFUSED_PAUSE_S
        self._move(LinkState.REFUSED)
        self.is_ready = False
        if was_attached:
            self._listener.on_lost(self)
        self._listener.on_changed(self)

    def _on_replica_state(self, state: front.ReplicaState) -> None:
        if state.epoch == self.scheduler_epoch:
            self.is_ready, self.is_draining, self.model = state.ready, state.draining, state.model
            self.limits = state.limits or self.limits
            self._listener.on_changed(self)

    # ---- time ----

    def _turn(self) -> None:
        """When something is due: greets, beats, notices silence."""
        now = self._clock()
        match self.state:
            case LinkState.CONNECTING:
                self._greet()
            case LinkState.GREETING if now - self._greeted_at > self._settings.heartbeat_timeout_s:
                self._start_over()
            case LinkState.REFUSED if now >= self._refused_until:
                self._start_over()
            case LinkState.ATTACHED if self._pulse.is_silent(now):
                self._lose("silent")
            case LinkState.ATTACHED if self._pulse.is_due(now):
                self._beat(now)
        self._set_timer()

    def _beat(self, now: float) -> None:
        self._pulse.beat(now)
        self._deliver(front.GatewayBeat(self._epoch))

    def _set_timer(self) -> None:
        """For what is due next in this state."""
        if self._timer is not None:
            self._timer.cancel()
        if self.state is LinkState.CLOSED:
            return
        now = self._clock()
        pause = self._pulse.next_at(now) - now if self.is_attached else _GREETING_INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(max(pause, _SHORTEST_PAUSE_S), self._turn)

    def _lose(self, reason: str) -> None:
        """Starts over with a socket of its own: what the old one still holds must not arrive."""
        self._become_lost(reason)
        self._disconnect()
        self._connect()

    def _become_lost(self, reason: str) -> None:
        self._move(LinkState.CONNECTING)
        self.is_ready = False
        self._log.warning("scheduler_lost", replica_id=self.replica_id, reason=reason)
        self._listener.on_lost(self)
        self._listener.on_changed(self)

    def _start_over(self) -> None:
        self._move(LinkState.CONNECTING)
        self._disconnect()
        self._connect()

    def _move(self, state: LinkState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"link to {self.endpoint}: {self.state.name} cannot become {state.name}")
        self.state = state
        self._set_timer()
