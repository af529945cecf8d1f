"""Gateways as the scheduler sees them: who is there, which life of each, what arrived, what goes out.

Turns messages into events of the core and the core's Emit into messages. Each hello of a gateway makes a new gateway
number: whatever a connection lost on its way belongs to the old number, and the gateway attaches again.
"""

from collections.abc import Iterable

import msgspec
import structlog

from chairlift.ipc import front, operator
from chairlift.ipc.common import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    HelloRefused,
    HelloWanted,
    Reason,
    is_compatible,
)
from chairlift.runtime.pulse import Rhythm, can_rest
from scheduler_svc.core import events
from scheduler_svc.peers import RouterLink, SilenceWatch


class Gateway(msgspec.Struct):
    """One life of one gateway's connection."""

    number: int
    identity: bytes
    gateway_id: str
    fingerprint: str
    minor: int
    silent_at: int
    """When it counts as silent, unless it is heard before."""


class ReplicaFacts(msgspec.Struct, frozen=True):
    """What a gateway is told of this replica."""

    replica_id: str
    epoch: int
    limits: front.ReplicaLimits
    ready: bool
    draining: bool
    model: front.ModelInfo | None


class OperatorCommand(msgspec.Struct, frozen=True):
    """A message that the shell answers itself, with the core's counts."""

    gateway: int
    message: front.LoadQuery | front.DrainCommand | front.FlushPrefixCacheCommand | operator.FromOperator


class GatewayLink(SilenceWatch):
    """Owns the table of gateways. Not thread-safe."""

    def __init__(self, link: RouterLink[front.ToScheduler, front.ToGateway], facts: ReplicaFacts, rhythm: Rhythm):
        super().__init__(rhythm)
        self._link = link
        self._facts = facts
        self._by_identity: dict[bytes, Gateway] = {}
        self._by_number: dict[int, Gateway] = {}
        self._next_number = 1
        self._lost: list[int] = []
        self.has_news = False
        """Whether anything but beats came at the last `receive`."""
        self._log = structlog.get_logger()

    @property
    def num_gateways(self) -> int:
        """Gateways attached now."""
        return len(self._by_number)

    @property
    def malformed(self) -> int:
        """Frames dropped because they were no message of this link."""
        return self._link.malformed

    def receive(self, now: int) -> list[events.Event | OperatorCommand]:
        """What gateways sent, as events, in order; never raises for what a peer sends."""
        received: list[events.Event | OperatorCommand] = []
        self.has_news = False
        for identity, message in self._link.drain():
            self.has_news = self.has_news or not isinstance(message, front.GatewayBeat)
            gateway = self._by_identity.get(identity)
            if isinstance(message, front.GatewayHello):
                self._greet(identity, message, now)
            elif gateway is None:
                self._link.send(identity, HelloWanted(self._facts.epoch))
            else:
                gateway.silent_at = self._rhythm.silent_at(now)
                event = self._to_event(gateway, message)
                if event is not None:
                    # A loss noticed while draining comes before what the gateway's next life says.
                    received += self._take_lost()
                    received.append(event)
        return received + self._take_lost()

    def _heard_peers(self) -> Iterable[Gateway]:
        return self._by_number.values()

    @property
    def lets_rest(self) -> bool:
        """Whether beats may be far between: every gateway understands it."""
        return all(can_rest(gateway.minor) for gateway in self._by_number.values())

    def expire(self, now: int) -> list[events.Event]:
        """Losses of gateways that have been silent too long, or whose queue was full."""
        for gateway in [g for g in self._by_number.values() if now > g.silent_at]:
            self._drop(gateway, "silent")
        return self._take_lost()

    def send(self, number: int, message: front.ToGateway) -> None:
        """Sends to one gateway. One that is gone or does not read is dropped; its loss comes out of `expire`."""
        gateway = self._by_number.get(number)
        if gateway is not None and not self._link.send(gateway.identity, message):
            self._drop(gateway, "unreachable or not reading")

    def is_attached(self, number: int) -> bool:
        """Whether that life of a gateway is still there."""
        return number in self._by_number

    def offer(self, number: int, message: front.ToGateway) -> bool:
        """As `send`, for what may be lost: a gateway whose queue is full misses it, and stays."""
        gateway = self._by_number.get(number)
        return gateway is not None and self._link.send(gateway.identity, message)

    def broadcast(self, message: front.ToGateway) -> None:
        """Sends to every gateway."""
        frame = self._link.encode(message)
        for gateway in list(self._by_number.values()):
            if not self._link.send_encoded(gateway.identity, frame):
                self._drop(gateway, "unreachable or not reading")

    def update(self, facts: ReplicaFacts) -> None:
        """New facts of the replica: gateways are told, and those that tokenise for another model are turned away."""
        changed = facts != self._facts
        self._facts = facts
        if not changed:
            return
        for gateway in list(self._by_number.values()):
            if facts.model is not None and gateway.fingerprint != facts.model.fingerprint:
                self._link.send(gateway.identity, self._fingerprint_refusal(gateway.fingerprint, facts.model))
                self._drop(gateway, "tokenises for another model")
        self.broadcast(front.ReplicaState(facts.epoch, facts.ready, facts.draining, facts.model, facts.limits))

    def _to_event(self, gateway: Gateway, message: front.ToScheduler) -> events.Event | OperatorCommand | None:
        number = gateway.number
        match message:
            case front.Submit():
                return events.Submit(number, message)
            case front.Stopped():
                return events.Stopped(number, message)
            case front.Detach():
                return events.Detach(number, message)
            case front.Cancel():
                return events.Cancel(number, message)
            case front.Attach():
                return events.Attach(number, message)
            case front.ExplainQuery():
                return events.Explain(number, message)
            case front.GatewayBye():
                self._drop(gateway, "ended")
            case front.GatewayBeat() | front.GatewayHello():
                pass
            case _:
                return OperatorCommand(number, message)
        return None

    def _greet(self, identity: bytes, hello: front.GatewayHello, now: int) -> None:
        facts = self._facts
        if not is_compatible(hello.major):
            message = f"gateway speaks protocol {hello.major}.{hello.minor}, this scheduler {PROTOCOL_MAJOR}.x"
            self._link.send(identity, HelloRefused(Reason.VERSION_MISMATCH, message))
            self._log.warning("gateway_refused", gateway_id=hello.gateway_id, reason=message)
            return
        if facts.model is not None and hello.fingerprint != facts.model.fingerprint:
            self._link.send(identity, self._fingerprint_refusal(hello.fingerprint, facts.model))
            self._log.warning("gateway_refused", gateway_id=hello.gateway_id, reason="another model")
            return
        earlier = self._by_identity.get(identity)
        if earlier is not None:
            self._drop(earlier, "greeted again")
        silent_at = self._rhythm.silent_at(now)
        gateway = Gateway(self._next_number, identity, hello.gateway_id, hello.fingerprint, hello.minor, silent_at)
        self._next_number += 1
        self._by_identity[identity] = self._by_number[gateway.number] = gateway
        self._log.info("gateway_attached", gateway_id=hello.gateway_id, gateway=gateway.number)
        self.send(
            gateway.number,
            front.SchedulerHello(
                PROTOCOL_MAJOR,
                PROTOCOL_MINOR,
                self._link.tags,
                facts.replica_id,
                facts.epoch,
                facts.limits,
                facts.ready,
                facts.draining,
                facts.model,
            ),
        )

    def _fingerprint_refusal(self, theirs: str, model: front.ModelInfo) -> HelloRefused:
        message = f"gateway tokenises for model {theirs}, the worker runs {model.model} ({model.fingerprint})"
        return HelloRefused(Reason.FINGERPRINT_MISMATCH, message)

    def _drop(self, gateway: Gateway, reason: str) -> None:
        if self._by_number.pop(gateway.number, None) is None:
            return
        del self._by_identity[gateway.identity]
        self._lost.append(gateway.number)
        self._log.info("gateway_lost", gateway_id=gateway.gateway_id, gateway=gateway.number, reason=reason)

    def _take_lost(self) -> list[events.Event]:
        lost: list[events.Event] = [events.GatewayLost(number) for number in self._lost]
        self._lost.clear()
        return lost
