"""What both links of the scheduler do alike: send and drain without blocking, count what is malformed, tell silence."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import structlog
import zmq

from chairlift.ipc.codec import Codec, MalformedMessageError
from chairlift.runtime.pulse import Rhythm
from chairlift.runtime.sockets import has_message

InT = TypeVar("InT")
OutT = TypeVar("OutT")

MAX_MESSAGES_A_WAKE = 512
"""Bound on one drain, so that a flood on one link cannot keep the loop from the other."""

_LOG_EVERY = 1000


class RouterLink(Generic[InT, OutT]):
    """A ROUTER with typed messages. Owns the socket's traffic, not who the peers are."""

    def __init__(self, name: str, socket: "zmq.Socket[bytes]", incoming: Codec[InT], outgoing: Codec[OutT]) -> None:
        self._name = name
        self._socket = socket
        self._incoming = incoming
        self._outgoing = outgoing
        self._log = structlog.get_logger(link=name)
        self.malformed = 0
        """Frames dropped because they were no message of this link."""

    @property
    def tags(self) -> tuple[int, ...]:
        """Tags that this side understands."""
        return self._incoming.tags

    def drain(self) -> Iterator[tuple[bytes, InT]]:
        """What has arrived, as (identity, message), at most MAX_MESSAGES_A_WAKE; malformed frames are counted."""
        for _ in range(MAX_MESSAGES_A_WAKE):
            if not has_message(self._socket):
                return
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 2:
                self._count_malformed(f"{len(frames)} frames")
                continue
            try:
                message = self._incoming.decode(frames[1])
            except MalformedMessageError as error:
                self._count_malformed(str(error))
                continue
            yield frames[0], message

    def send(self, identity: bytes, message: OutT) -> bool:
        """Whether the message was queued to that peer; False when it is gone or its queue is full."""
        return self.send_encoded(identity, self._outgoing.encode(message))

    def encode(self, message: OutT) -> bytes:
        """Bytes for `send_encoded`, when one message goes to several peers."""
        return self._outgoing.encode(message)

    def send_encoded(self, identity: bytes, frame: bytes) -> bool:
        """As `send`."""
        try:
            self._socket.send_multipart((identity, frame), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def _count_malformed(self, detail: str) -> None:
        self.malformed += 1
        if self.malformed % _LOG_EVERY == 1:
            self._log.warning("malformed_message_dropped", count=self.malformed, detail=detail)


class HeardPeer(Protocol):
    """One peer as far as its silence goes."""

    silent_at: int
    """When it counts as silent, unless it is heard before; monotonic nanoseconds."""


class SilenceWatch(ABC):
    """The part of a link that knows when its peers count as silent."""

    def __init__(self, rhythm: Rhythm) -> None:
        self._rhythm = rhythm

    @abstractmethod
    def _heard_peers(self) -> Iterable[HeardPeer]:
        """Those that are attached now."""

    def forgive(self, stall_ns: int) -> None:
        """This process itself stood still for so long: nobody was silent meanwhile, as far as can be known."""
        for peer in self._heard_peers():
            peer.silent_at += stall_ns

    def end_rest(self, now: int) -> None:
        """Beats come again as usual from now on, and so must answers."""
        for peer in self._heard_peers():
            peer.silent_at = min(peer.silent_at, self._rhythm.silent_at(now))

    def next_expiry(self) -> int | None:
        """When the first peer will have been silent too long, unless it is heard; None without peers."""
        return min((peer.silent_at + 1 for peer in self._heard_peers()), default=None)
