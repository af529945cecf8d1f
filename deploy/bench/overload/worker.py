"""A worker that computes nothing: answers each plan after the time that a modelled device would take.

`python -m deploy.bench.overload.worker` with the settings of a worker. A slow device of few seats, so that neither the
load generator nor the machine is the limit.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence

import zmq

from chairlift.ipc import device
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, HelloWanted
from chairlift.ipc.tokens import pack_u32, unpack_u32
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.model_source import fingerprint_model, resolve_model
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import StopSignal, die_with_parent, new_epoch, stop_on_signals
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import parse_settings
from chairlift.runtime.sockets import connect_dealer, worker_endpoint

STEP_NS, ROW_NS, PROMPT_TOKEN_NS = 40_000_000, 500_000, 50_000
SEATS, STEP_TOKENS, BLOCKS = 16, 512, 4096
_TOKEN, _VOCAB = 1000, 49_152
_LINGER_MS = 200


class WorkerStandIn:
    """One device, one plan after another."""

    def __init__(self, settings: Settings, socket: "zmq.Socket[bytes]") -> None:
        self._settings = settings
        self._socket = socket
        self._epoch = new_epoch()
        self._in, self._out = device.to_worker_codec(), device.to_scheduler_codec()
        self._plans: deque[device.Plan] = deque()
        self._left: dict[int, int] = {}
        self._busy_until: int | None = None
        self._last_step = 0
        self._next_beat = 0
        self._is_known = False

    def run(self, stop: StopSignal, state: ProcessState) -> None:
        """Serves until `stop` is requested."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(stop.fileno(), zmq.POLLIN)
        while not stop.requested:
            now = time.monotonic_ns()
            self._receive()
            self._work(now)
            self._beat(now)
            state.turned()
            state.set_ready(self._is_known, "" if self._is_known else "waiting for the scheduler")
            due = min(self._next_beat, self._busy_until or self._next_beat)
            poller.poll(max(0, -((time.monotonic_ns() - due) // 1_000_000)))
        self._send(device.WorkerBye(self._epoch))

    def _receive(self) -> None:
        while True:
            try:
                message = self._in.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            match message:
                case device.Plan():
                    self._plans.append(message)
                case device.SchedulerGreeting():
                    self._is_known = True
                case HelloWanted():
                    self._is_known = False
                case _:
                    pass

    def _work(self, now: int) -> None:
        if self._busy_until is not None and now >= self._busy_until:
            self._send(self._done(self._plans.popleft()))
            self._busy_until = None
        if self._busy_until is None and self._plans:
            self._busy_until = now + _cost_ns(self._plans[0])

    def _done(self, plan: device.Plan) -> device.StepDone:
        if plan.reset:
            self._left.clear()
        for row in plan.boarded:
            self._left[row.row] = len(row.tokens) // 4 - row.computed
        num_sampled, chunks = len(plan.decode) // 4, unpack_u32(plan.chunks)
        for row_id, count in zip(chunks[::2], chunks[1::2], strict=True):
            self._left[row_id] -= count
            num_sampled += self._left[row_id] == 0
        self._last_step = plan.step
        return device.StepDone(self._epoch, plan.step, pack_u32([_TOKEN] * num_sampled), device_ns=_cost_ns(plan))

    def _beat(self, now: int) -> None:
        if now < self._next_beat:
            return
        self._next_beat = now + round(self._settings.ipc.heartbeat_interval_s * 1e9)
        self._send(device.WorkerBeat(self._epoch, 0, self._last_step, 0) if self._is_known else self._hello())

    def _hello(self) -> device.WorkerHello:
        model = self._settings.model
        source = resolve_model(model.source, model.revision)
        geometry = device.Geometry(
            model.served_name or source.name, fingerprint_model(source), _VOCAB, model.max_model_len or 2048, (2,),
            self._settings.scheduler.block_size, BLOCKS, 0, SEATS, STEP_TOKENS, 1024, "bfloat16",
        )  # fmt: skip
        return device.WorkerHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, self._in.tags, self._epoch, 0, 1, geometry)

    def _send(self, message: device.ToScheduler) -> None:
        try:
            self._socket.send(self._out.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self._is_known = False


def _cost_ns(plan: device.Plan) -> int:
    return STEP_NS + ROW_NS * (len(plan.decode) // 4) + PROMPT_TOKEN_NS * sum(unpack_u32(plan.chunks)[1::2])


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM."""
    die_with_parent()
    settings = parse_settings(argv, "stand-in worker")
    state = ProcessState(sign=LifeSign.inherited())
    probes = ProbeServer(settings.worker.metrics_listen, state)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = connect_dealer(context, worker_endpoint(settings.ipc), settings.ipc, b"worker-stand-in")
    with stop_on_signals() as stop:
        WorkerStandIn(settings, socket).run(stop, state)
    context.destroy(linger=_LINGER_MS)
    probes.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
