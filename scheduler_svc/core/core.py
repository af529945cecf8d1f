"""The scheduler's core: events in, effects out.

Owns the dispatch of events and nothing else; the modules beside it hold the rules, `state` what is known. Pure: no
clock, no socket, no log, no randomness. The same events at the same times give the same effects, byte for byte.
"""

from collections.abc import Callable
from functools import partial

from chairlift.ipc import front
from scheduler_svc.core import admission, attachments, events, planner, queries, reconfigure, recovery, results, upkeep
from scheduler_svc.core.checkpoint import load_state
from scheduler_svc.core.config import SchedulingConfig, find_conflict
from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.core.effects import Effect, SendPlan, WakeAt
from scheduler_svc.core.hash_source import HashSource, TokenHashes
from scheduler_svc.core.iterations import IterationWatch, WatchOptions
from scheduler_svc.core.revisions import Revision
from scheduler_svc.core.state import SchedulerState


class Core:
    """One replica's scheduler.

    `hash_key` keys the prefix index's hashes (at most 64 bytes), `epoch` numbers this life of the scheduler.
    `make_hashes` gives block hashes from elsewhere, for recording and replay.
    """

    def __init__(
        self,
        config: SchedulingConfig,
        hash_key: bytes,
        epoch: int,
        make_hashes: Callable[[int], HashSource] | None = None,
    ) -> None:
        """Raises ValueError when the knobs contradict each other."""
        conflict = find_conflict(config)
        if conflict is not None:
            raise ValueError(conflict)
        self.state = SchedulerState(config, make_hashes or partial(TokenHashes, hash_key), epoch)

    @classmethod
    def restored(cls, checkpoint: bytes, make_hashes: Callable[[int], HashSource]) -> "Core":
        """A core that goes on from a checkpoint. Raises CheckpointError."""
        core = cls.__new__(cls)
        core.state = load_state(checkpoint, make_hashes)
        return core

    def handle(self, event: events.Event, now: int) -> list[Effect]:
        """Takes one event in; what is to be done comes out, in order.

        `now` is integer monotonic nanoseconds and never decreases. Raises only when an invariant is broken: nothing
        that comes over a wire can do that.
        """
        match event:
            case events.StepDone(message):
                results.step_done(self.state, message, now)
            case events.Tick():
                self._tick(now)
            case events.Submit(gateway, message):
                admission.submit(self.state, gateway, message, now)
            case (
                events.Attach()
                | events.Stopped()
                | events.Detach()
                | events.Cancel()
                | events.Explain()
                | events.GatewayLost()
            ):
                _handle_front(self.state, event, now)
            case events.StepFailed() | events.SnapshotNeeded() | events.WorkerUp() | events.WorkerLost():
                _handle_device(self.state, event, now)
            case _:
                _handle_operator(self.state, event, now)
        return self._take_effects()

    def _tick(self, now: int) -> None:
        state = self.state
        upkeep.expire(state, now)
        while state.is_worker_up and len(state.in_flight) < state.max_in_flight:
            plan = planner.make_plan(state, now)
            if plan is None:
                break
            state.effects.append(SendPlan(plan))

    def _take_effects(self) -> list[Effect]:
        state = self.state
        wake = state.timers.wake()
        if wake is not None:
            state.effects.append(WakeAt(wake))
        effects = state.effects
        state.effects = []
        return effects

    def shape_of(self, step: int) -> StepShape:
        """What a plan in flight computes. Raises KeyError for any other step."""
        for planned in self.state.in_flight:
            if planned.number == step:
                return planned.shape
        raise KeyError(step)

    def load(self) -> front.Load:
        """This replica's account of itself at this moment."""
        return upkeep.load(self.state)

    def watch(self, options: WatchOptions | None) -> IterationWatch | None:
        """Begins, changes or (with None) ends the account of iterations. It has no part in any decision."""
        state = self.state
        if options is None:
            state.watch = None
        elif state.watch is None:
            state.watch = IterationWatch(options)
        else:
            state.watch.options = options
        return state.watch

    def limits(self) -> front.ReplicaLimits:
        """Limits in force; zeros where they depend on a worker and none was up yet."""
        return upkeep.limits(self.state)

    @property
    def config(self) -> SchedulingConfig:
        """The knobs in force."""
        return self.state.config

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """Revisions of the knobs, oldest first; the last one is in force."""
        return self.state.revisions.history()

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken: a worker is up, or may come back, and nothing drains."""
        worker = self.state.worker
        return worker is not None and not worker.is_abandoned and not self.state.is_draining

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because this replica is to end."""
        return self.state.is_draining

    @property
    def is_idle(self) -> bool:
        """Whether no request lives here."""
        return not self.state.requests

    @property
    def model(self) -> front.ModelInfo | None:
        """What the workers serve; None until the first is up."""
        return upkeep.model(self.state)


FrontEvent = events.Attach | events.Stopped | events.Detach | events.Cancel | events.Explain | events.GatewayLost
DeviceEvent = events.StepFailed | events.SnapshotNeeded | events.WorkerUp | events.WorkerLost
OperatorEvent = events.ConfigChanged | events.ConfigRolledBack | events.Drain | events.FlushPrefixCache


def _handle_front(state: SchedulerState, event: FrontEvent, now: int) -> None:
    match event:
        case events.Stopped(gateway, message):
            attachments.stopped(state, gateway, message, now)
        case events.Detach(gateway, message):
            attachments.detach(state, gateway, message.handle, now)
        case events.Cancel(gateway, message):
            queries.cancel(state, gateway, message, now)
        case events.Attach(gateway, message):
            attachments.attach(state, gateway, message, now)
        case events.Explain(gateway, message):
            queries.explain(state, gateway, message, now)
        case events.GatewayLost(gateway):
            attachments.gateway_lost(state, gateway, now)


def _handle_device(state: SchedulerState, event: DeviceEvent, now: int) -> None:
    match event:
        case events.StepFailed(message):
            recovery.step_failed(state, message, now)
        case events.SnapshotNeeded(message):
            recovery.snapshot_needed(state, message, now)
        case events.WorkerUp(worker_epoch, geometry):
            recovery.worker_up(state, worker_epoch, geometry, now)
        case events.WorkerLost(worker_epoch):
            recovery.worker_lost(state, worker_epoch, now)


def _handle_operator(state: SchedulerState, event: OperatorEvent, now: int) -> None:
    match event:
        case events.ConfigChanged():
            reconfigure.change(state, event, now)
        case events.ConfigRolledBack():
            reconfigure.roll_back(state, event, now)
        case events.Drain(undrain, deadline_in_ns):
            upkeep.drain(state, undrain, deadline_in_ns, now)
        case events.FlushPrefixCache():
            state.pool.flush()
            if state.worker is not None:
                state.worker.lost_pool = None
