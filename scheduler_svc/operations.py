"""What operators ask of this replica, carried out: configuration, lists, levels of logs, drain, flush.

Owns the translation between the operator's messages and the core's events and views. Decides nothing: the core says
whether a change is taken.
"""

import logging
import time
from collections.abc import Callable

import structlog

from chairlift.ipc import front, operator
from chairlift.ipc.common import Reason
from chairlift.runtime.build import process_facts
from chairlift.runtime.telemetry import log_level, set_log_level
from scheduler_svc.config import KnobFaultError, changed_config, changed_names, scheduling_knobs
from scheduler_svc.core import effects, events, listing
from scheduler_svc.core.core import Core
from scheduler_svc.core.reconfigure import find_refusal
from scheduler_svc.core.revisions import Guard, GuardMetric, Origin, Revision
from scheduler_svc.gateway_link import OperatorCommand
from scheduler_svc.iteration_feed import IterationFeed
from scheduler_svc.worker_link import WorkerLink

Handle = Callable[[events.Event, int], list[effects.Effect]]
_MAX_WORDS = 500
"""Characters of an actor's name or comment that are kept."""
_METRICS = frozenset(GuardMetric)


class Operations:
    """Belongs to the scheduler's loop."""

    def __init__(
        self,
        core: Core,
        handle: Handle,
        load: Callable[[], front.Load],
        workers: WorkerLink,
        feed: IterationFeed,
        epoch: int,
        drain_timeout_ns: int,
    ) -> None:
        """`handle` takes an event as the core does, and may record it; `load` gives the replica's account of itself."""
        self._core = core
        self._handle = handle
        self._load = load
        self._workers = workers
        self._feed = feed
        self._epoch = epoch
        self._drain_timeout_ns = drain_timeout_ns
        self._started_ns = time.monotonic_ns()
        self._earlier_level = ""
        self._level_until_ns: int | None = None
        self._log = structlog.get_logger()

    def carry_out(self, command: OperatorCommand, now: int) -> list[effects.Effect]:
        """Does it; the answer is among the effects. Never raises for what a peer sends."""
        message = command.message
        done: list[effects.Effect] = []
        answer: front.ToGateway | None = None
        match message:
            case operator.WatchCommand():
                self._feed.command(command.gateway, message, now)
            case operator.ConfigQuery(query, include_history):
                answer = self._config(query, now, include_history=include_history)
            case operator.ConfigChange():
                done, answer = self._change(message, now)
            case operator.ConfigRollback():
                done, answer = self._roll_back(message, now)
            case operator.RequestsQuery():
                answer = listing.list_requests(self._core.state, message, now)
            case operator.InspectQuery(query):
                answer = listing.inspect(self._core.state, message, now)
                if answer is None:
                    answer = front.QueryFailed(query, Reason.UNKNOWN_REQUEST, "no such request is known here")
            case operator.ServerInfoQuery(query):
                scheduler = process_facts(self._epoch, self._started_ns)
                answer = operator.ServerInfoReply(query, scheduler, self._workers.processes)
            case _:
                done, answer = self._counted(message, now)
        return done if answer is None else [*done, effects.Emit(command.gateway, answer)]

    # ---- what is answered with the replica's counts ----

    def _counted(
        self,
        message: front.LoadQuery | front.DrainCommand | front.FlushPrefixCacheCommand | operator.LogLevelCommand,
        now: int,
    ) -> tuple[list[effects.Effect], front.ToGateway]:
        core, done, num_flushed = self._core, list[effects.Effect](), 0
        match message:
            case front.DrainCommand(_, undrain, deadline_in_ns):
                deadline = self._drain_timeout_ns if deadline_in_ns is None else deadline_in_ns
                done = self._handle(events.Drain(undrain, deadline), now)
                self._log.info("drain_changed", draining=core.is_draining)
            case front.FlushPrefixCacheCommand():
                num_flushed = core.state.pool.num_cached
                done = self._handle(events.FlushPrefixCache(), now)
                num_flushed -= core.state.pool.num_cached
            case operator.LogLevelCommand(query, level, duration_ns):
                if not self._change_log_level(level, duration_ns, now):
                    return [], front.QueryFailed(query, Reason.INVALID_REQUEST, "is no log level", "level")
            case front.LoadQuery():
                pass
        ready, draining = core.is_ready, core.is_draining
        return done, front.LoadReply(message.query, self._epoch, ready, draining, self._load(), num_flushed)

    def _change_log_level(self, level: str, duration_ns: int | None, now: int) -> bool:
        if self._level_until_ns is None:
            self._earlier_level = log_level()
        if not self._set_level(level):
            return False
        self._level_until_ns = None if duration_ns is None else now + duration_ns
        return True

    def _set_level(self, level: str) -> bool:
        try:
            set_log_level(level)
        except ValueError:
            return False
        self._workers.set_log_level(level)
        return True

    @property
    def has_appointment(self) -> bool:
        """Whether `keep_time` has something to do at some time."""
        return self._level_until_ns is not None

    def keep_time(self, now: int) -> None:
        """To be called now and then: brings back a log level whose time is over."""
        if self._level_until_ns is not None and now >= self._level_until_ns:
            self._level_until_ns = None
            self._set_level(self._earlier_level)

    # ---- configuration ----

    def _change(self, message: operator.ConfigChange, now: int) -> tuple[list[effects.Effect], front.ToGateway]:
        core, query = self._core, message.query
        try:
            worker = core.state.worker
            config = changed_config(core.config, message.changes, None if worker is None else worker.geometry)
        except KnobFaultError as error:
            return [], front.QueryFailed(query, Reason.INVALID_REQUEST, error.message, error.knob, error.limits)
        guard = message.guard
        if guard is not None and guard.metric not in _METRICS:
            return [], front.QueryFailed(query, Reason.INVALID_REQUEST, "is not known here", "guard.metric")
        event = events.ConfigChanged(
            config,
            message.expected_revision,
            None if guard is None else Guard(GuardMetric(guard.metric), guard.bound, guard.window_ns),
            message.comment[:_MAX_WORDS],
            message.actor[:_MAX_WORDS],
        )
        if not message.validate_only:
            return self._revise(query, event, now)
        return [], self._outcome(query, find_refusal(core.state.revisions, event), now)

    def _roll_back(self, message: operator.ConfigRollback, now: int) -> tuple[list[effects.Effect], front.ToGateway]:
        comment, actor = message.comment[:_MAX_WORDS], message.actor[:_MAX_WORDS]
        event = events.ConfigRolledBack(message.revision, message.expected_revision, comment, actor)
        return self._revise(message.query, event, now)

    def _revise(
        self, query: int, event: events.ConfigChanged | events.ConfigRolledBack, now: int
    ) -> tuple[list[effects.Effect], front.ToGateway]:
        done = self._handle(event, now)
        refusal = next((effect for effect in done if isinstance(effect, effects.ConfigRefused)), None)
        return done, self._outcome(query, refusal, now)

    def _outcome(self, query: int, refusal: effects.ConfigRefused | None, now: int) -> front.ToGateway:
        if refusal is None:
            return self._config(query, now)
        in_force = (("revision", str(self._core.revisions[-1].number)),)
        return front.QueryFailed(query, refusal.reason, refusal.message, limits=in_force)

    def _config(self, query: int, now: int, *, include_history: bool = False) -> operator.ConfigReply:
        told = self._told(now, 0 if include_history else -2)
        current, history = told[-1], tuple(reversed(told[:-1])) if include_history else ()
        return operator.ConfigReply(query, current.number, current.knobs, current.age_ns, current, history)

    def _told(self, now: int, start: int) -> list[operator.ConfigRevision]:
        """Revisions from index `start` on, each with what it changed in the one before."""
        worker = self._core.state.worker
        geometry = None if worker is None else worker.geometry
        revisions = self._core.revisions[start:]
        return [
            operator.ConfigRevision(
                number=revision.number,
                knobs=scheduling_knobs(revision.config, geometry),
                age_ns=now - (revision.at_ns if revision.origin is not Origin.START else self._started_ns),
                origin=revision.origin,
                changed=() if before is None else changed_names(before.config, revision.config),
                actor=revision.actor,
                comment=revision.comment,
                guard=self._guard_of(revision),
            )
            for before, revision in zip((None, *revisions), revisions, strict=False)
        ]

    def _guard_of(self, revision: Revision) -> operator.Guard | None:
        watch = self._core.state.guard_watch
        if watch is None or watch.revision != revision.number:
            return None
        return operator.Guard(watch.guard.metric, watch.guard.bound, watch.guard.window_ns)

    def note_revision(self, revision: Revision, now: int) -> None:
        """Logs a change, whoever made it: nobody is told of a guard's in another way."""
        told = self._told(now, -2)[-1]
        self._log.log(
            logging.WARNING if revision.origin is Origin.GUARD else logging.INFO,
            "config_revised",
            revision=revision.number,
            origin=revision.origin.name.lower(),
            changed={name: getattr(told.knobs, name) for name in told.changed if name != "tenants"},
            changed_tenants="tenants" in told.changed,
            restores=revision.restores,
            actor=revision.actor,
            comment=revision.comment,
        )
