"""The worker process around the runner: start in order, one loop over the link and the batch, end in order."""

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import structlog
import torch
import zmq

from chairlift.ipc.device import StepDone, WorkerBye
from chairlift.runtime.lean_memory import settle
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import ExitCode, StopSignal, new_epoch
from chairlift.runtime.settings import Settings
from chairlift.runtime.sockets import DisconnectWatch, connect_dealer, worker_endpoint
from chairlift.runtime.tracing import Tracing
from gpu_worker.backends.choose import choose_backend
from gpu_worker.engine import Engine, build_engine
from gpu_worker.execution import Execution, Finished
from gpu_worker.faults import FaultInjector
from gpu_worker.heartbeat import Heartbeat, Progress, patience_ns
from gpu_worker.host_memory import anonymous_bytes
from gpu_worker.link import SchedulerLink, Standing
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.memory import explained_shortage
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.sizes import choose_sizes
from gpu_worker.threads import ThreadPlan

_LINGER_MS = 200
"""How long the last messages may take to leave."""


class _Connection(NamedTuple):
    socket: "zmq.Socket[bytes]"
    losses: DisconnectWatch


class StopRequestedError(Exception):
    """A signal came while the model was loading."""


class WorkerService:
    """Builds the process, runs it, takes it down. Main thread only."""

    def __init__(
        self, settings: Settings, config: ModelConfig, faults: FaultInjector, tracing: Tracing | None = None
    ) -> None:
        """Checks everything that can be checked without reading weights, then opens the probe's port. Owns `tracing`.

        Raises UnusableSettingsError, EndpointError, or OSError when the port is taken.
        """
        self._settings = settings
        self._faults = faults
        self._log = structlog.get_logger()
        self._sizes = choose_sizes(settings, config)
        self._endpoint = worker_endpoint(settings.ipc)
        self._epoch = new_epoch()
        self._progress = Progress()
        self._largest_step_ns = 0
        self.state = ProcessState(settings.worker.stuck_stage_timeout_s, sign=LifeSign.inherited())
        listen = settings.worker.metrics_listen
        self._metrics = WorkerMetrics(tracing)
        self._probes = ProbeServer(listen, self.state, self._metrics.exposition) if listen else None

    def load(self, files: ModelFiles, threads: ThreadPlan, stop: StopSignal) -> Engine:
        """Reads weights, sizes the cache, warms up. `threads`: those of native kernels.

        Raises UnusableSettingsError, ModelLoadError, KvCacheSizeError, DeviceMemoryError, WarmUpError, or
        StopRequestedError at a signal between two tensors.
        """

        def progress(done: int, total: int) -> None:
            if stop.requested:
                raise StopRequestedError
            self.state.turned()
            self.state.set_ready(False, f"loading weights, {done * 100 // total} %")

        self.state.set_ready(False, "preparing kernels")
        backend = choose_backend(self._settings, files, self._sizes, threads)
        started = time.monotonic()
        with explained_shortage("loading weights", self._sizes.device):
            model = backend.load(files, progress)
        self._log.info(
            "weights_loaded",
            parameters=model.num_parameters,
            mib=model.weight_bytes >> 20,
            dtype=str(self._sizes.dtype).removeprefix("torch."),
            quantization=backend.quantization,
            seconds=round(time.monotonic() - started, 2),
            host_mib=anonymous_bytes() >> 20,
        )
        self.state.set_ready(False, "warming up")
        engine = build_engine(self._settings, files.source, backend, model, self._sizes, self._epoch, self._faults)
        self._metrics.follow(engine.runner.counters)
        self._largest_step_ns = engine.largest_step_ns
        return engine

    def run(self, engine: Engine, stop: StopSignal) -> int:
        """Serves plans until `stop` is requested or the scheduler refuses this worker. Returns the exit code."""
        with self._connected(engine) as (connection, link, heartbeat), closing(engine.new_execution()) as execution:
            poller = zmq.Poller()
            poller.register(connection.socket, zmq.POLLIN)
            poller.register(connection.losses.socket, zmq.POLLIN)
            poller.register(stop.fileno(), zmq.POLLIN)
            if execution.wake_fd is not None:
                poller.register(execution.wake_fd, zmq.POLLIN)
            self._log.info("worker_started", endpoint=self._endpoint, epoch=self._epoch, **_figures(engine))
            settle()
            while not stop.requested:
                if connection.losses.take():
                    link.reconnect()
                self._turn(execution, link, stop)
                self._note_standing(link, heartbeat)
                if link.standing is Standing.REFUSED:
                    return ExitCode.USAGE
                self._metrics.record_noted()
                link.beat_if_due()
                # Rounded up: a wake before its time would find nothing due and spin.
                poller.poll(math.ceil(link.patience_s * 1000))
            self._send_all(execution, execution.drain(), link)
            link.send(WorkerBye(self._epoch))
        self._log.info("worker_stopped", steps=engine.runner.counters.steps)
        return ExitCode.OK

    @property
    def probe_port(self) -> int | None:
        """Port of the probes; None where they are switched off."""
        return self._probes.port if self._probes is not None else None

    def close(self) -> None:
        """Frees the probe's port, and exports what is left."""
        if self._probes is not None:
            self._probes.close()
        self._metrics.close()

    @contextmanager
    def _connected(self, engine: Engine) -> "Iterator[tuple[_Connection, SchedulerLink, Heartbeat]]":
        ipc = self._settings.ipc
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        identity = b"worker-" + secrets.token_hex(8).encode()
        try:
            socket = connect_dealer(context, self._endpoint, ipc, identity)
            connection = _Connection(socket, DisconnectWatch(socket))
            link = SchedulerLink(socket, engine.geometry, self._epoch, ipc, self._progress)
            heartbeat = Heartbeat(context, self._endpoint, ipc, identity, self._epoch, self._progress, self.state)
            try:
                yield connection, link, heartbeat
            finally:
                heartbeat.close()
                connection.losses.close()
        finally:
            context.destroy(linger=_LINGER_MS)

    def _turn(self, execution: Execution, link: SchedulerLink, stop: StopSignal) -> None:
        """Begins every plan that has arrived and that there is room for, in order, and sends what is finished."""
        link.receive()
        while not stop.requested and execution.has_room and (plan := link.next_plan()) is not None:
            min_s = self._settings.worker.stuck_step_min_s
            self._progress.began(patience_ns(plan.expected_ns, self._largest_step_ns, min_s))
            execution.submit(plan)
            self._send_all(execution, execution.finished(), link)
            link.receive()
        self._send_all(execution, execution.finished(), link)
        # A device that hangs lets this loop turn: while a step is in work, the heartbeat says how long that is life.
        if execution.busy_since_ns is None:
            self.state.turned(link.patience_s)

    def _send_all(self, execution: Execution, finished: Iterator[Finished], link: SchedulerLink) -> None:
        for plan, result in finished:
            self._progress.ended(execution.busy_since_ns)
            if isinstance(result, StepDone):
                self._progress.last_step = plan.step
            if result is not None and not link.send(result):
                self._log.warning("result_not_sent", step=plan.step)
            self._metrics.note(plan, result)
            self.state.turned()

    def _note_standing(self, link: SchedulerLink, heartbeat: Heartbeat) -> None:
        if link.standing is Standing.GREETED:
            heartbeat.is_greeted.set()
        else:
            heartbeat.is_greeted.clear()
        self.state.set_ready(link.is_heard, "" if link.is_heard else Standing.UNKNOWN.value)


def _figures(engine: Engine) -> dict[str, object]:
    geometry = engine.geometry
    return {
        "model": geometry.model,
        "device": geometry.device,
        "attention": engine.attention,
        "dtype": geometry.dtype,
        "torch_threads": torch.get_num_threads(),
        "max_model_len": geometry.max_model_len,
        "max_num_seqs": geometry.max_num_seqs,
        "max_num_batched_tokens": geometry.max_num_batched_tokens,
        "kv_tokens": geometry.num_blocks * geometry.block_size,
    }
