"""The scheduler process: two sockets, one clock, one loop around the core.

Each wake hands the core everything that has arrived, then one Tick, which plans. A plan leaves before what is emitted
to gateways, so that the device waits for as little Python as possible.
"""

import secrets
import time

import msgspec
import structlog
import zmq

from chairlift.ipc import device, front
from chairlift.runtime import sockets
from chairlift.runtime.lean_memory import settle
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import StopSignal, new_epoch
from chairlift.runtime.pulse import Rhythm
from chairlift.runtime.settings import IpcSettings, Settings
from chairlift.runtime.tracing import Tracing
from scheduler_svc.core import effects, events
from scheduler_svc.core.core import Core
from scheduler_svc.core.units import to_config
from scheduler_svc.gateway_link import GatewayLink, OperatorCommand, ReplicaFacts
from scheduler_svc.iteration_feed import IterationFeed
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.operations import Operations
from scheduler_svc.peers import RouterLink
from scheduler_svc.record import Recorder
from scheduler_svc.tracing import RequestSpans
from scheduler_svc.worker_link import WorkerLink

_NS = 1_000_000_000
_DRAIN_GRACE_NS = 2 * _NS
"""What the core gets, beyond the drain's own deadline, to end everything."""
_LINGER_MS = 500
"""How long the last messages (ends of streams) may take to leave after the loop has ended."""


class SchedulerService:
    """Builds the process from its settings, runs it, and takes it down. Main thread only."""

    def __init__(self, settings: Settings, tracing: Tracing | None = None) -> None:
        """Binds both endpoints; owns `tracing`. Raises EndpointError, or OSError when the probe's port is taken."""
        self._settings = settings
        self._log = structlog.get_logger()
        self._epoch = new_epoch()
        self._rhythm = Rhythm(settings.ipc, time.monotonic_ns())
        config, hash_key = to_config(settings.scheduler), secrets.token_bytes(16)
        recording = settings.scheduler.record is not None
        self._recorder = Recorder(settings.scheduler, config, hash_key, self._epoch) if recording else None
        self._core = self._recorder.core if self._recorder is not None else Core(config, hash_key, self._epoch)
        self._handle = self._recorder.handle if self._recorder is not None else self._core.handle
        share = settings.telemetry.iteration_span_share
        self._spans = RequestSpans(tracing, self._core, share) if tracing is not None else None
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        try:
            self._gateways, self._workers, self._losses = self._bind(settings.ipc)
            self.state = ProcessState(sign=LifeSign.inherited())
            self.state.set_ready(False, "no worker yet")
            listen = settings.scheduler.metrics_listen
            self._metrics = SchedulerMetrics(tracing, settings.telemetry.max_tenant_series)
            self._probes = ProbeServer(listen, self.state, self._metrics.exposition) if listen else None
        except (sockets.EndpointError, OSError):
            self._context.destroy(linger=0)
            raise
        self._feed = IterationFeed(self._core, self._epoch, self._gateways)
        drain_ns = round(settings.scheduler.drain_timeout_s * _NS)
        self._operations = Operations(
            self._core, self._handle, self._load, self._workers, self._feed, self._epoch, drain_ns
        )
        self._wake_at: int | None = None
        self._busy_ns = 0
        self._is_untold = True
        """Whether anything may have changed since the last report."""
        self._told_of = (0, 0)
        """Gateways and malformed messages in it, which make no event."""

    def _bind(self, ipc: IpcSettings) -> tuple[GatewayLink, WorkerLink, tuple[sockets.DisconnectWatch, ...]]:
        gateway_socket = sockets.bind_router(self._context, sockets.gateway_endpoint(ipc), ipc)
        worker_socket = sockets.bind_router(self._context, sockets.worker_endpoint(ipc), ipc)
        losses = sockets.DisconnectWatch(gateway_socket), sockets.DisconnectWatch(worker_socket)
        for socket in (gateway_socket, worker_socket, *(loss.socket for loss in losses)):
            self._poller.register(socket, zmq.POLLIN)
        limit = ipc.max_message_bytes
        to_gateways = RouterLink(
            "gateway", gateway_socket, front.to_scheduler_codec(limit), front.to_gateway_codec(limit)
        )
        to_workers = RouterLink(
            "worker", worker_socket, device.to_scheduler_codec(limit), device.to_worker_codec(limit)
        )
        return (
            GatewayLink(to_gateways, self._facts(), self._rhythm),
            WorkerLink(to_workers, self._epoch, self._rhythm),
            losses,
        )

    def run(self, stop: StopSignal) -> None:
        """Serves until `stop` is requested, then drains within `scheduler.drain_timeout_s`."""
        self._poller.register(stop.fileno(), zmq.POLLIN)
        self._log.info("scheduler_started", replica_id=self._settings.scheduler.replica_id, epoch=self._epoch)
        settle()
        deadline: int | None = None
        while True:
            woken_by = [source for source, _ in self._poller.poll(self._poll_timeout_ms())]
            now = time.monotonic_ns()
            # Who went shows at the next beats, which must not be far off then.
            has_loss = any(loss.take() for loss in self._losses if loss.socket in woken_by)
            self._turn(now, has_loss=has_loss)
            self._busy_ns += time.monotonic_ns() - now
            if stop.requested:
                if deadline is None:
                    self._poller.unregister(stop.fileno())
                    deadline = now + self._begin_drain(now)
                if now >= deadline or self._core.is_idle:
                    break
        self._log.info("scheduler_stopped")

    @property
    def probe_port(self) -> int | None:
        """Port of the probes; None where they are switched off."""
        return self._probes.port if self._probes is not None else None

    def close(self) -> None:
        """Frees sockets, their files and the probe's port."""
        if self._probes is not None:
            self._probes.close()
        self._metrics.close()
        if self._recorder is not None:
            self._recorder.close()
        if self._spans is not None:
            self._spans.close()
        for loss in self._losses:
            loss.close()
        self._context.destroy(linger=_LINGER_MS)
        for endpoint in (sockets.gateway_endpoint(self._settings.ipc), sockets.worker_endpoint(self._settings.ipc)):
            sockets.remove_socket_file(endpoint)

    # ---- one wake ----

    def _turn(self, now: int, *, has_loss: bool) -> None:
        is_news = self._wake_at is not None and now >= self._wake_at
        if is_news:
            self._wake_at = None
        self._forgive_own_stall(now)
        done: list[effects.Effect] = []
        for event in [*self._workers.receive(now), *self._workers.expire(now)]:
            done += self._handle_traced(event, now)
            is_news = True
        if is_news:
            # Before gateways are heard: one that greets in this wake is told of a worker that came in it.
            self._announce()
        for item in self._gateways.receive(now):
            is_news = True
            if isinstance(item, OperatorCommand):
                done += self._operations.carry_out(item, now)
            else:
                answer = self._handle(item, now)
                if self._spans is not None and isinstance(item, events.Submit):
                    self._spans.submitted(item.message, answer, now)
                done += answer
        for event in self._gateways.expire(now):
            done += self._handle(event, now)
            is_news = True
        if (is_news or has_loss or self._workers.has_news or self._gateways.has_news) and self._rhythm.disturb(now):
            self._workers.end_rest(now)
            self._gateways.end_rest(now)
        # Beats alone change nothing.
        if is_news or not self._core.is_idle:
            done += self._plan(now)
            self._apply(done, now)
            if self._feed.watch is not None:
                self._feed.report(now)
            self._announce()
            self._is_untold = True
        self._beat(now)
        if self._recorder is not None:
            self._recorder.turned(now)
        self.state.turned(max(0, self._rhythm.next_beat - now) / _NS)

    def _forgive_own_stall(self, now: int) -> None:
        stall_ns = self._rhythm.own_stall_ns(now)
        if stall_ns > 0:
            self._workers.forgive(stall_ns)
            self._gateways.forgive(stall_ns)

    def _plan(self, now: int) -> list[effects.Effect]:
        watch = self._feed.watch
        if watch is None:
            return self._handle(events.Tick(), now)
        began = time.perf_counter_ns()
        done = self._handle(events.Tick(), now)
        watch.time_plans(time.perf_counter_ns() - began)
        return done

    def _apply(self, done: list[effects.Effect], now: int) -> None:
        lost: list[events.Event] = []
        for effect in done:
            if isinstance(effect, effects.SendPlan):
                plan = effect.plan if self._spans is None else self._spans.sending(effect.plan, now)
                lost += self._workers.send_plan(plan, self._expected_ns())
        for effect in done:
            match effect:
                case effects.Emit(gateway, message):
                    self._gateways.send(gateway, message)
                case effects.WakeAt(at_ns):
                    self._wake_at = at_ns
                case effects.ConfigRevised(revision):
                    self._operations.note_revision(revision, now)
                case effects.SendPlan() | effects.ConfigRefused():
                    pass
        for event in lost:
            self._apply(self._handle_traced(event, now), now)

    def _expected_ns(self) -> int:
        """How long the step that was planned last should take; 0 while the cost model cannot tell."""
        state = self._core.state
        costs = state.cost_model.costs
        return round(costs.step_ns(state.in_flight[-1].shape)) if costs is not None and state.in_flight else 0

    def _handle_traced(self, event: events.Event, now: int) -> list[effects.Effect]:
        """For what comes from the worker."""
        if self._spans is None:
            return self._handle(event, now)
        self._spans.receiving(event, now)
        done = self._handle(event, now)
        self._spans.received(event, now)
        return done

    def _poll_timeout_ms(self) -> int:
        expiries = self._workers.next_expiry(), self._gateways.next_expiry()
        wakes = (self._rhythm.next_beat, self._wake_at, *expiries)
        until = min(wake for wake in wakes if wake is not None)
        # Rounded up: a wake before its time would find nothing due and spin.
        return max(0, -((time.monotonic_ns() - until) // 1_000_000))

    def _beat(self, now: int) -> None:
        if now < self._rhythm.next_beat:
            return
        next_in_ns = self._rhythm.beat(now, may_rest=self._may_rest())
        for event in self._workers.beat(next_in_ns):
            self._apply(self._handle_traced(event, now), now)
            self._rhythm.disturb(now)
            self._is_untold = True
        self._operations.keep_time(now)
        # An idle process comes here from cold caches: it does what it must.
        to_tell_of = (self._gateways.num_gateways, self._gateways.malformed + self._workers.malformed)
        if self._is_untold or to_tell_of != self._told_of:
            self._is_untold, self._told_of = not self._core.is_idle, to_tell_of
            self._metrics.report(self._load(), self._core, self._busy_ns)
            if self._spans is not None:
                self._spans.end_due()
        self._gateways.broadcast(front.ReplicaBeat(self._epoch, self._metrics.latest, next_in_ns))

    def _may_rest(self) -> bool:
        """Whether nothing is to be done before something comes. A recording is written out now and then."""
        if not self._core.is_idle or self._is_untold or self._operations.has_appointment or self._recorder is not None:
            return False
        return self._workers.lets_rest and self._gateways.lets_rest

    # ---- operator, drain, readiness ----

    def _begin_drain(self, now: int) -> int:
        timeout_ns = round(self._settings.scheduler.drain_timeout_s * _NS)
        load = self._core.load()
        self._log.info("scheduler_draining", running=load.running, waiting=load.waiting)
        self._apply(self._handle(events.Drain(deadline_in_ns=timeout_ns), now), now)
        self._announce()
        return timeout_ns + _DRAIN_GRACE_NS

    def _load(self) -> front.Load:
        return msgspec.structs.replace(
            self._core.load(),
            attached_gateways=self._gateways.num_gateways,
            worker_epoch=self._workers.epoch,
            worker_losses=self._workers.losses,
            malformed_messages=self._gateways.malformed + self._workers.malformed,
        )

    def _announce(self) -> None:
        """Tells gateways and probes when readiness, draining or the model has changed."""
        if self._core.is_draining:
            self.state.set_ready(False, "draining")
        elif self._core.is_ready:
            self.state.set_ready(True)
        else:
            self.state.set_ready(False, "no worker")
        self._gateways.update(self._facts())

    def _facts(self) -> ReplicaFacts:
        core = self._core
        replica_id = self._settings.scheduler.replica_id
        return ReplicaFacts(replica_id, self._epoch, core.limits(), core.is_ready, core.is_draining, core.model)
