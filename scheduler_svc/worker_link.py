"""Workers as the scheduler sees them: one group of ranks at a time, up or lost, and the plans that go to it.

A group is up when all its ranks have greeted with the same epoch and geometry. A rank that is silent for too long, or
greets in a new life, loses the whole group: a tensor-parallel group has no smaller half.
"""

import time
from collections.abc import Iterable

import msgspec
import structlog

from chairlift.ipc import device
from chairlift.ipc.common import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    HelloRefused,
    HelloWanted,
    ProcessFacts,
    Reason,
    is_compatible,
)
from chairlift.runtime.pulse import Rhythm, can_rest
from scheduler_svc.core import events
from scheduler_svc.peers import RouterLink, SilenceWatch

_MAX_BLOCKS = 1 << 24
_GEOMETRY_BOUNDS = {
    "vocab_size": 1 << 24,
    "max_model_len": 1 << 28,
    "block_size": 1 << 16,
    "num_blocks": _MAX_BLOCKS,
    "max_num_seqs": 1 << 16,
    "max_num_batched_tokens": 1 << 24,
    "kv_bytes_per_token": 1 << 40,
}
"""Each from 1 to this; what is beyond is a broken worker, and would cost this process its memory."""
_MAX_UNREACHABLE = 2
"""Beats in a row: one may fall into the moment in which a connection is made again."""


class Rank(msgspec.Struct):
    """One worker process that has greeted."""

    identity: bytes
    hello: device.WorkerHello
    silent_at: int
    """When it counts as silent, unless it is heard before."""
    greeted_ns: int = 0
    num_unreachable: int = 0
    """Beats in a row that could not be handed to its connection."""

    def facts(self) -> ProcessFacts:
        """The process, as of now."""
        hello = self.hello
        told = hello.process
        if told is None:
            return ProcessFacts("", "", f"{hello.major}.{hello.minor}", hello.worker_epoch, 0, hello.host, hello.pid)
        return msgspec.structs.replace(told, uptime_ns=told.uptime_ns + time.monotonic_ns() - self.greeted_ns)


class WorkerLink(SilenceWatch):
    """Owns the table of ranks. Not thread-safe."""

    def __init__(self, link: RouterLink[device.ToScheduler, device.ToWorker], epoch: int, rhythm: Rhythm) -> None:
        super().__init__(rhythm)
        self._link = link
        self._epoch = epoch
        self._ranks: dict[int, Rank] = {}
        self._up: int | None = None
        self._waiting: set[int] = set()
        """Epochs that have been told of in the log while another holds their rank."""
        self.losses = 0
        """Groups lost since the start."""
        self.has_news = False
        """Whether anything but beats came at the last `receive`."""
        self._log = structlog.get_logger()

    @property
    def epoch(self) -> int:
        """Life of the group that is up; 0 while none is."""
        return self._up or 0

    @property
    def malformed(self) -> int:
        """Frames dropped because they were no message of this link."""
        return self._link.malformed

    def receive(self, now: int) -> list[events.Event]:
        """What workers sent, as events, in order; never raises for what a peer sends."""
        received: list[events.Event] = []
        self.has_news = False
        for identity, message in self._link.drain():
            if isinstance(message, device.WorkerBeat):
                self._note_beat(identity, message, now)
                continue
            self.has_news = True
            if isinstance(message, device.WorkerHello):
                received += self._greet(identity, message, now)
                continue
            rank = next((r for r in self._ranks.values() if r.identity == identity), None)
            if rank is None or message.worker_epoch != rank.hello.worker_epoch:
                self._link.send(identity, HelloWanted(self._epoch))
                continue
            rank.silent_at = self._rhythm.silent_at(now)
            if isinstance(message, device.WorkerBye):
                received += self._lose("ended")
            elif rank.hello.rank == 0 and self._up is not None:
                received.append(_to_event(message))
        return received

    def _heard_peers(self) -> Iterable[Rank]:
        return self._ranks.values()

    @property
    def lets_rest(self) -> bool:
        """Whether beats may be far between: every rank is connected, and understands it."""
        return all(can_rest(rank.hello.minor) and not rank.num_unreachable for rank in self._ranks.values())

    def expire(self, now: int) -> list[events.Event]:
        """The loss of the group when one of its ranks has been silent too long."""
        silent = [number for number, rank in self._ranks.items() if now > rank.silent_at]
        return self._lose(f"rank {silent[0]} is silent") if silent else []

    def send_plan(self, plan: device.Plan, expected_ns: int = 0) -> list[events.Event]:
        """Sends a plan to every rank, with the time that it should take; the group's loss where one cannot take it."""
        frame = self._link.encode(msgspec.structs.replace(plan, expected_ns=expected_ns) if expected_ns else plan)
        for rank in list(self._ranks.values()):
            if not self._link.send_encoded(rank.identity, frame):
                return self._lose(f"rank {rank.hello.rank} does not take plans")
        return []

    @property
    def processes(self) -> tuple[ProcessFacts, ...]:
        """What the ranks have told of themselves, by rank."""
        return tuple(rank.facts() for _, rank in sorted(self._ranks.items()))

    def set_log_level(self, level: str) -> None:
        """Tells every rank that understands it."""
        for rank in self._ranks.values():
            if device.LogLevel.__struct_config__.tag in rank.hello.tags:
                self._link.send(rank.identity, device.LogLevel(level))

    def beat(self, next_in_ns: int) -> list[events.Event]:
        """Tells every rank that this scheduler lives; the loss of the group when one has no connection any more."""
        frame = self._link.encode(device.SchedulerBeat(self._epoch, next_in_ns))
        for rank in self._ranks.values():
            rank.num_unreachable = 0 if self._link.send_encoded(rank.identity, frame) else rank.num_unreachable + 1
        gone = [rank.hello.rank for rank in self._ranks.values() if rank.num_unreachable >= _MAX_UNREACHABLE]
        return self._lose(f"rank {gone[0]} is not connected") if gone else []

    def _note_beat(self, identity: bytes, beat: device.WorkerBeat, now: int) -> None:
        # Beats come on a socket of their own, so the rank is found by what it says, not by who sends.
        rank = self._ranks.get(beat.rank)
        if rank is None or rank.hello.worker_epoch != beat.worker_epoch:
            self._link.send(identity.removesuffix(device.BEAT_SUFFIX), HelloWanted(self._epoch))
            return
        rank.silent_at = self._rhythm.silent_at(now)

    def _greet(self, identity: bytes, hello: device.WorkerHello, now: int) -> list[events.Event]:
        if self._is_held_by_another(hello, now):
            # It is asked to greet again with each of its beats, and gets the place when the other is gone.
            if hello.worker_epoch not in self._waiting:
                self._waiting.add(hello.worker_epoch)
                self._log.warning("worker_waits", rank=hello.rank, reason="another one lives on this rank")
            return []
        refusal = self._refusal(hello)
        if refusal is not None:
            self._link.send(identity, refusal)
            self._log.warning("worker_refused", rank=hello.rank, reason=refusal.message)
            return []
        if self._is_reconnecting(hello):
            self._log.warning("worker_reconnected", worker_epoch=hello.worker_epoch)
            self._take_in(identity, hello, now)
            return [events.SnapshotNeeded(device.NeedSnapshot(hello.worker_epoch, 0))]
        lost: list[events.Event] = []
        others = [rank for rank in self._ranks.values() if rank.hello.rank != hello.rank]
        newer_life = any(rank.hello.worker_epoch != hello.worker_epoch for rank in others)
        if hello.rank in self._ranks or newer_life:
            lost = self._lose("greeted again")
        self._take_in(identity, hello, now)
        if len(self._ranks) < hello.world_size:
            return lost
        self._up = hello.worker_epoch
        geometry = hello.geometry
        self._log.info("worker_up", worker_epoch=self._up, ranks=hello.world_size, kv_blocks=geometry.num_blocks)
        return [*lost, events.WorkerUp(hello.worker_epoch, geometry)]

    def _take_in(self, identity: bytes, hello: device.WorkerHello, now: int) -> None:
        self._waiting.discard(hello.worker_epoch)
        self._ranks[hello.rank] = Rank(identity, hello, self._rhythm.silent_at(now), greeted_ns=time.monotonic_ns())
        greeting = device.SchedulerGreeting(PROTOCOL_MAJOR, PROTOCOL_MINOR, self._link.tags, self._epoch)
        self._link.send(identity, greeting)

    def _is_reconnecting(self, hello: device.WorkerHello) -> bool:
        """Whether only messages were lost, with a connection: its KV cache is as it was. A group is lost as a whole."""
        known = self._ranks.get(hello.rank)
        is_same = known is not None and known.hello.geometry == hello.geometry
        return hello.world_size == 1 and self._up == hello.worker_epoch and is_same

    def _is_held_by_another(self, hello: device.WorkerHello, now: int) -> bool:
        """Whether a living process has the rank: two that took it from each other would drop the KV cache each time."""
        holder = self._ranks.get(hello.rank)
        return holder is not None and holder.hello.worker_epoch != hello.worker_epoch and now <= holder.silent_at

    def _refusal(self, hello: device.WorkerHello) -> HelloRefused | None:
        if not is_compatible(hello.major):
            message = f"worker speaks protocol {hello.major}.{hello.minor}, this scheduler {PROTOCOL_MAJOR}.x"
            return HelloRefused(Reason.VERSION_MISMATCH, message)
        geometry = hello.geometry
        wrong = [name for name, most in _GEOMETRY_BOUNDS.items() if not 1 <= getattr(geometry, name) <= most]
        if wrong or not 0 <= hello.rank < hello.world_size or not 0 <= geometry.num_host_blocks <= _MAX_BLOCKS:
            return HelloRefused(Reason.GEOMETRY_MISMATCH, f"out of range: {', '.join(wrong) or 'rank or host blocks'}")
        for rank in self._ranks.values():
            if rank.hello.worker_epoch != hello.worker_epoch or rank.hello.rank == hello.rank:
                continue
            differing = device.geometry_differences(rank.hello.geometry, geometry)
            if differing or rank.hello.world_size != hello.world_size:
                message = f"rank {hello.rank} differs from rank {rank.hello.rank} in {differing or ['world_size']}"
                return HelloRefused(Reason.GEOMETRY_MISMATCH, message)
        return None

    def _lose(self, reason: str) -> list[events.Event]:
        self._ranks.clear()
        if self._up is None:
            return []
        epoch, self._up = self._up, None
        self.losses += 1
        self._log.warning("worker_lost", worker_epoch=epoch, reason=reason)
        return [events.WorkerLost(epoch)]


def _to_event(message: device.StepDone | device.StepFailed | device.NeedSnapshot) -> events.Event:
    match message:
        case device.StepDone():
            return events.StepDone(message)
        case device.StepFailed():
            return events.StepFailed(message)
        case device.NeedSnapshot():
            return events.SnapshotNeeded(message)
