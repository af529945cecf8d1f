"""A worker service on a thread, and a scheduler that is only its end of the link."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import zmq

from chairlift.ipc import device
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR
from chairlift.runtime.model_source import resolve_model
from chairlift.runtime.process import StopSignal
from chairlift.runtime.settings import IpcSettings, ModelSettings, SchedulerSettings, Settings, WorkerSettings
from gpu_worker.faults import FaultInjector
from gpu_worker.loading.loader import open_model
from gpu_worker.service import WorkerService
from gpu_worker.threads import ThreadPlan

MessageT = TypeVar("MessageT")
PATIENCE_S = 60.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Polls until `condition` gives something true, and returns that."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


class FakeScheduler:
    """Binds where workers connect; greets nobody by itself."""

    def __init__(self, run_dir: Path, epoch: int = 9) -> None:
        self.epoch = epoch
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"ipc://{run_dir}/worker.sock")
        self._in, self._out = device.to_scheduler_codec(), device.to_worker_codec()
        self.worker = b""
        """Identity of the worker's main socket."""
        self.received: list[tuple[bytes, device.ToScheduler]] = []

    def receive(self, kind: type[MessageT], skipping: tuple[type, ...] = (device.WorkerBeat,)) -> MessageT:
        """The next message of a kind; other kinds than those to skip are an error."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if not self._socket.poll(50):
                continue
            identity, frame = self._socket.recv_multipart()
            message = self._in.decode(frame)
            self.received.append((identity, message))
            if isinstance(message, kind):
                if not identity.endswith(device.BEAT_SUFFIX):
                    self.worker = identity
                return message
            assert isinstance(message, skipping), message
        raise AssertionError(f"no {kind.__name__} came")

    def hears_nothing(self, for_ms: int) -> bool:
        """Whether no message comes for so long; the first that comes is thrown away."""
        return not self._socket.poll(for_ms) or not self._socket.recv_multipart()

    def send(self, message: device.ToWorker) -> None:
        self.send_raw(self._out.encode(message))

    def send_raw(self, *frames: bytes) -> None:
        self._socket.send_multipart((self.worker, *frames))

    def greet(self) -> device.WorkerHello:
        hello = self.receive(device.WorkerHello)
        self.welcome()
        return hello

    def welcome(self) -> None:
        self.send(device.SchedulerGreeting(PROTOCOL_MAJOR, PROTOCOL_MINOR, self._in.tags, self.epoch))

    def close(self) -> None:
        self._context.destroy(linger=0)


class RunningWorker:
    """The service's loop on a thread of the test."""

    def __init__(self, settings: Settings) -> None:
        self.stop = StopSignal()
        files = open_model(resolve_model(settings.model.source))
        self.service = WorkerService(settings, files.config, FaultInjector())
        self.engine = self.service.load(files, ThreadPlan(1, 0, ()), self.stop)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.exit_code = self.service.run(self.engine, self.stop)

    def join(self) -> int | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.exit_code

    def close(self) -> None:
        self.stop.request()
        self.join()
        self.service.close()
        self.stop.close()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Short and private: a socket's path may have 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="worker-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def worker_settings(twins: Any, run_dir: Path) -> Settings:
    return Settings(
        model=ModelSettings(source=str(twins("qwen2").folder), dtype="float32"),
        ipc=IpcSettings(run_dir=str(run_dir), heartbeat_interval_s=0.05, heartbeat_timeout_s=0.5),
        scheduler=SchedulerSettings(max_num_seqs=4, max_num_batched_tokens=48, block_size=8),
        worker=WorkerSettings(metrics_listen="127.0.0.1:0", kv_cache_bytes=1 << 20),
    )


@pytest.fixture
def new_scheduler(run_dir: Path) -> Iterator[Callable[..., FakeScheduler]]:
    made: list[FakeScheduler] = []

    def make(epoch: int = 9) -> FakeScheduler:
        made.append(FakeScheduler(run_dir, epoch))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


@pytest.fixture
def new_worker(worker_settings: Settings) -> Iterator[Callable[..., RunningWorker]]:
    made: list[RunningWorker] = []

    def make(**ipc: Any) -> RunningWorker:
        settings = msgspec.structs.replace(worker_settings, ipc=msgspec.structs.replace(worker_settings.ipc, **ipc))
        made.append(RunningWorker(settings))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until
