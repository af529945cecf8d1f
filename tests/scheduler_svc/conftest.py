"""A running scheduler process's shell (in a thread), and peers that speak to it over real sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from chairlift.ipc import device, front
from chairlift.ipc.codec import Codec
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR
from chairlift.ipc.tokens import pack_u32, unpack_u32
from chairlift.runtime import sockets
from chairlift.runtime.process import StopSignal
from chairlift.runtime.settings import IpcSettings, SchedulerSettings, Settings
from scheduler_svc.service import SchedulerService

GEOMETRY = device.Geometry("tiny", "f00d", 1000, 256, (2,), 16, 64, 0, 8, 256, 1024, "float32")
_PATIENCE_S = 20.0


class Peer:
    """One DEALER with typed messages, for tests."""

    def __init__(self, endpoint: str, settings: IpcSettings, identity: bytes, incoming: Any, outgoing: Any) -> None:
        self._context = zmq.Context()
        self.socket = sockets.connect_dealer(self._context, endpoint, settings, identity)
        self.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self._in: Codec[Any] = Codec(incoming)
        self._out: Codec[Any] = Codec(outgoing)

    def send(self, message: Any) -> None:
        self.socket.send(self._out.encode(message))

    def receive(self, *kinds: type) -> Any:
        """The next message of one of these kinds; others are passed over. Fails after 10 s of silence."""
        while True:
            message = self._in.decode(self.socket.recv())
            if not kinds or isinstance(message, kinds):
                return message

    def close(self) -> None:
        self._context.destroy(linger=0)


class Gateway(Peer):
    def __init__(self, settings: Settings, name: str = "gateway-1", epoch: int = 5) -> None:
        endpoint = sockets.gateway_endpoint(settings.ipc)
        super().__init__(endpoint, settings.ipc, name.encode(), front.ToGateway, front.ToScheduler)
        self.name, self.epoch = name, epoch

    def greet(self, major: int = PROTOCOL_MAJOR, fingerprint: str = "f00d", *, minor: int = PROTOCOL_MINOR) -> None:
        self.send(front.GatewayHello(major, minor, (), self.name, self.epoch, fingerprint))

    def await_rest(self) -> None:
        """Returns when the scheduler has told that it rests."""
        for _ in range(20):
            if self.receive(front.ReplicaBeat).next_in_ns:
                return
            self.send(front.GatewayBeat(self.epoch))
        raise AssertionError("20 beats, and no rest")

    def submit(self, handle: int, **fields: Any) -> None:
        given = {"tenant": "t", "request_id": f"r{handle}", "digest": bytes(16), "prompt": pack_u32([5, 6, 7])}
        self.send(front.Submit(handle, **(given | {"max_tokens": 4} | fields)))

    def await_load(self, is_wanted: Callable[[front.Load], bool], what: str) -> front.Load:
        """The first load told by a beat that `is_wanted`; `what` says in words what did not come within 20 s."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            load: front.Load = self.receive(front.ReplicaBeat).load
            if is_wanted(load):
                return load
            self.send(front.GatewayBeat(self.epoch))
        raise AssertionError(f"not within {_PATIENCE_S} s: {what}")


class Worker(Peer):
    """Plays a worker: answers each plan with one made-up token a row that samples."""

    def __init__(self, settings: Settings, epoch: int = 7, name: bytes = b"worker-0") -> None:
        endpoint = sockets.worker_endpoint(settings.ipc)
        super().__init__(endpoint, settings.ipc, name, device.ToWorker, device.ToScheduler)
        self.epoch = epoch
        self.left_to_compute: dict[int, int] = {}

    def greet(self, major: int = PROTOCOL_MAJOR, geometry: device.Geometry = GEOMETRY) -> None:
        self.send(device.WorkerHello(major, PROTOCOL_MINOR, (), self.epoch, 0, 1, geometry))

    def join(self, geometry: device.Geometry | None = None) -> None:
        """Greets and waits until it is taken in: what gateways send from then on finds a worker."""
        self.greet(geometry=geometry or GEOMETRY)
        self.receive(device.SchedulerGreeting)

    def step(self, token: int = 11) -> device.Plan:
        """Takes the next plan and answers it."""
        plan: device.Plan = self.receive(device.Plan)
        self.answer(plan, token)
        return plan

    def answer_next(self, timeout_ms: int) -> None:
        """Answers the next message if it is a plan; returns when there is none for so long."""
        if self.socket.poll(timeout_ms):
            message = self.receive()
            if isinstance(message, device.Plan):
                self.answer(message)

    def answer(self, plan: device.Plan, token: int = 11) -> None:
        """Carries out a plan."""
        for row in plan.boarded:
            self.left_to_compute[row.row] = len(row.tokens) // 4 - row.computed
        num_sampled = len(unpack_u32(plan.decode))
        chunks = unpack_u32(plan.chunks)
        for row_id, count in zip(chunks[::2], chunks[1::2], strict=True):
            self.left_to_compute[row_id] -= count
            num_sampled += self.left_to_compute[row_id] == 0
        self.send(device.StepDone(self.epoch, plan.step, pack_u32([token] * num_sampled)))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ipc = IpcSettings(
        run_dir=str(tmp_path / "run"),
        heartbeat_interval_s=0.1,
        heartbeat_timeout_s=30.0,
        idle_heartbeat_interval_s=0.2,
    )
    return Settings(ipc=ipc, scheduler=SchedulerSettings(metrics_listen="127.0.0.1:0", drain_timeout_s=0.2))


@pytest.fixture
def start(settings: Settings) -> Iterator[Callable[..., tuple[SchedulerService, StopSignal, threading.Thread]]]:
    """Starts a scheduler's shell in a thread; it is stopped and closed at the end."""
    started: list[tuple[SchedulerService, StopSignal, threading.Thread]] = []

    def _start(with_settings: Settings = settings) -> tuple[SchedulerService, StopSignal, threading.Thread]:
        service, stop = SchedulerService(with_settings), StopSignal()
        thread = threading.Thread(target=service.run, args=(stop,))
        thread.start()
        started.append((service, stop, thread))
        return started[-1]

    yield _start
    for service, stop, thread in started:
        stop.request()
        thread.join(30)
        assert not thread.is_alive()
        service.close()
        stop.close()


@pytest.fixture
def peers(settings: Settings) -> Iterator[Callable[[type], Any]]:
    """Makes gateways and workers that are closed at the end."""
    made: list[Peer] = []

    def _make(kind: type, **fields: Any) -> Any:
        made.append(kind(settings, **fields))
        return made[-1]

    yield _make
    for peer in made:
        peer.close()


@pytest.fixture
def new_gateway(peers: Callable[..., Any]) -> Callable[..., Gateway]:
    return lambda **fields: peers(Gateway, **fields)


@pytest.fixture
def new_worker(peers: Callable[..., Any]) -> Callable[..., Worker]:
    return lambda **fields: peers(Worker, **fields)
