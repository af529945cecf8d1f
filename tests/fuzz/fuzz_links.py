"""Mutants of valid frames at the scheduler's two sockets and at the worker's, beside a stream that must not notice.

In process, so that a million a socket is a matter of minutes: the real links, core and runner, over a socket that only
holds frames. A smaller number goes through real sockets in `tests/scheduler_svc` and `tests/gpu_worker`.
"""

import os
import random
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import zmq

from chairlift.ipc import device, front
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, FinishReason, SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32, unpack_u64
from chairlift.runtime.model_source import resolve_model
from chairlift.runtime.process import StopSignal
from chairlift.runtime.pulse import Rhythm
from chairlift.runtime.settings import IpcSettings, ModelSettings, SchedulerSettings, Settings, WorkerSettings
from scheduler_svc.core import effects, events, invariants
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.gateway_link import GatewayLink, OperatorCommand, ReplicaFacts
from scheduler_svc.peers import RouterLink
from scheduler_svc.worker_link import WorkerLink

IS_LONG = os.environ.get("FUZZ") == "long"
MUTANTS = 1_000_000 if IS_LONG else 200_000
SEED = secrets.randbits(32) if IS_LONG else 1
BATCH = 2_000
EXECUTED = 200
"""One in so many of the plans that decode is carried out by the runner."""
S = 1_000_000_000
GEOMETRY = device.Geometry("tiny", "f00d", 1000, 256, (2,), 16, 64, 0, 8, 64, 1024, "float32")


class FrameSocket:
    """A ROUTER or DEALER that is only a queue."""

    def __init__(self) -> None:
        self.incoming: deque[list[bytes]] = deque()
        self.sent: deque[tuple[bytes, ...]] = deque(maxlen=1000)

    def getsockopt(self, option: int) -> int:
        assert option == zmq.EVENTS
        return int(zmq.POLLIN) if self.incoming else 0

    def recv_multipart(self, _flags: int = 0) -> list[bytes]:
        return self.incoming.popleft()

    def send_multipart(self, frames: Sequence[bytes], _flags: int = 0) -> None:
        self.sent.append(tuple(frames))

    def send(self, frame: bytes, _flags: int = 0) -> None:
        self.sent.append((frame,))


def mutants(chance: random.Random, frames: Sequence[bytes], count: int) -> Iterator[bytes]:
    """Bytes changed, cut off, put in, put out of place: most still look like a message."""
    for _ in range(count):
        mutant = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(mutant) or 1)
            match chance.randrange(8):
                case 0:
                    del mutant[at : at + chance.randrange(1, 9)]
                case 1:
                    mutant[at:at] = chance.randbytes(chance.randrange(1, 9))
                case 2 if len(mutant) > 1:
                    other = chance.choice(frames)
                    mutant[at:] = other[min(at, len(other)) :]
                case _ if mutant:
                    mutant[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC0, 0xFF, chance.randrange(256)))
                case _:
                    pass
        yield bytes(mutant)


class Replica:
    """The scheduler's links and core, with a worker that samples token after token, and one living stream."""

    GATEWAY, WORKER = b"good-gateway", b"worker-good"
    PROMPT, LIMIT = [5, 6, 7], 60

    def __init__(self) -> None:
        self.front, self.device = FrameSocket(), FrameSocket()
        self.core = Core(SchedulingConfig(max_num_queued_reqs=32, watermark_ppm=0), b"key", 7)
        facts = ReplicaFacts("r", 7, self.core.limits(), False, False, None)
        to_gateways: Any = RouterLink("g", self.front, front.to_scheduler_codec(), front.to_gateway_codec())  # type: ignore[arg-type]
        to_workers: Any = RouterLink("w", self.device, device.to_scheduler_codec(), device.to_worker_codec())  # type: ignore[arg-type]
        rhythm = Rhythm(IpcSettings(heartbeat_timeout_s=1e7), 0)
        self.gateways, self.workers = GatewayLink(to_gateways, facts, rhythm), WorkerLink(to_workers, 7, rhythm)
        self.now = 1000 * S
        self.plans: deque[device.Plan] = deque()
        self.left: dict[int, int] = {}
        self.tokens: list[int] = []
        self.reason: FinishReason | None = None
        self._to_device, self._to_gateway = device.to_worker_codec(), front.to_gateway_codec()
        self._from_device, self._from_gateway = device.to_scheduler_codec(), front.to_scheduler_codec()
        self.join_worker()
        self.from_gateway(front.GatewayHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, (), "good", 5, "f00d"))
        self.from_gateway(
            front.Submit(256, "living", "living", bytes(16), pack_u32(self.PROMPT),
                         SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=self.LIMIT)
        )  # fmt: skip
        self.turn()

    def join_worker(self) -> None:
        self.left.clear()
        self.plans.clear()
        self.from_worker(device.WorkerHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, (), 9, 0, 1, GEOMETRY))

    def from_gateway(self, message: front.ToScheduler) -> None:
        self.front.incoming.append([self.GATEWAY, self._from_gateway.encode(message)])

    def from_worker(self, message: device.ToScheduler) -> None:
        self.device.incoming.append([self.WORKER, self._from_device.encode(message)])

    def turn(self) -> None:
        """What the service's loop does, until both sockets are empty."""
        while self.front.incoming or self.device.incoming:
            self.now += 1_000_000
            for event in self.workers.receive(self.now):
                self._handle(event)
            for item in self.gateways.receive(self.now):
                if not isinstance(item, OperatorCommand):
                    self._handle(item)
            for event in self.gateways.expire(self.now):
                self._handle(event)
        self._handle(events.Tick())

    def check(self) -> None:
        invariants.check(self.core, self.now)

    def step(self) -> None:
        """The worker answers its oldest plan, if there is one."""
        if not self.plans:
            return
        plan = self.plans.popleft()
        sampled = self._advance(plan)
        self.from_worker(device.StepDone(9, plan.step, pack_u32(sampled)))
        self.turn()

    def finish(self) -> None:
        """Everybody else goes; the living stream comes to its end."""
        for _ in range(3000):
            if self.reason is not None:
                break
            self.step()
        assert self.reason is FinishReason.LENGTH
        assert self.tokens == [11] * self.LIMIT

    def _advance(self, plan: device.Plan) -> list[int]:
        if plan.reset:
            self.left.clear()
        for row in plan.boarded:
            self.left[row.row] = len(row.tokens) // 4 - row.computed
        sampled = len(unpack_u32(plan.decode))
        chunks = unpack_u32(plan.chunks)
        for row_id, count in zip(chunks[::2], chunks[1::2], strict=True):
            self.left[row_id] -= count
            sampled += self.left[row_id] == 0
        return [11] * sampled

    def _handle(self, event: events.Event) -> None:
        for effect in self.core.handle(event, self.now):
            match effect:
                case effects.SendPlan(plan):
                    decoded = self._to_device.decode(self._to_device.encode(plan))
                    assert isinstance(decoded, device.Plan)
                    self.plans.append(decoded)
                case effects.Emit(gateway, message):
                    if gateway == 1:
                        self._deliver(message)
                case _:
                    pass

    def _deliver(self, message: front.ToGateway) -> None:
        match message:
            case front.Deltas():
                counts = list(unpack_u32(message.counts)) or [1] * (len(message.handles) // 8)
                tokens = iter(unpack_u32(message.tokens))
                for handle, offset, count in zip(
                    unpack_u64(message.handles), unpack_u32(message.offsets), counts, strict=True
                ):
                    own = [next(tokens) for _ in range(count)]
                    if handle == 256:
                        assert offset == len(self.tokens), "an offset twice, or a gap"
                        self.tokens += own
            case front.Finished(handle=256, reason=reason):
                assert self.reason is None, "two ends"
                self.reason = FinishReason(reason)
            case _:
                pass


SAMPLING = SamplingParams(temperature=0.5, seed=3, stop_token_ids=(9,), logit_bias=((7, 1.0),), logprobs=1)
FROM_GATEWAYS: tuple[front.ToScheduler, ...] = (
    front.Submit(1024, "t", "a", bytes(16), pack_u32([1, 2, 3]), SAMPLING, max_tokens=9),
    front.Submit(2048, "t", "b", bytes(16), pack_u32(range(40)), n=2, max_tokens=4, deadline_in_ns=5 * S),
    front.Submit(4096, "t", "c", bytes(16), pack_u32([4]), attempt=2, emitted=(pack_u32([5, 6]),), age_ns=S),
    front.Attach(1024, "t", "a"),
    front.Stopped(1024, 2),
    front.Detach(1024),
    front.Cancel(1, "t", "a"),
    front.GatewayHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, (51, 52), "mutant", 3, "f00d"),
    front.GatewayBeat(3),
    front.ExplainQuery(2, "t", "a"),
)
FROM_WORKERS: tuple[device.ToScheduler, ...] = (
    device.WorkerHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, (10, 11), 9, 0, 1, GEOMETRY),
    device.WorkerBeat(9, 0, 5, 100),
    device.StepDone(9, 3, pack_u32([11]), device_ns=5, host_ns=7),
    device.StepDone(9, 4, pack_u32([11, 11]), ends=pack_u32([0, 1])),
    device.StepDone(9, 5, b"", logprobs=(device.RowLogprobs(0, pack_u32([11]), bytes(4)),)),
    device.StepFailed(9, 3, "exception", "somewhere", pack_u32([0])),
    device.NeedSnapshot(9, 2),
    device.WorkerBye(9),
)


def test_mutants_from_a_gateway() -> None:
    """Requests of its own may come of them; whatever they are, the core's invariants hold and the stream goes on."""
    chance, replica = random.Random(SEED), Replica()
    encode = front.to_scheduler_codec().encode
    replica.front.incoming.append([b"mutant", encode(FROM_GATEWAYS[7])])
    frames = [encode(message) for message in FROM_GATEWAYS]
    for number, mutant in enumerate(mutants(chance, frames, MUTANTS)):
        replica.front.incoming.append([b"mutant", mutant])
        if number % BATCH == BATCH - 1:
            replica.turn()
            replica.check()
            if number % (MUTANTS // 40) < BATCH:
                replica.step()
    assert replica.gateways.malformed > MUTANTS // 20
    replica.finish()
    replica.check()


@pytest.mark.parametrize("is_stranger", [True, False], ids=["stranger", "worker"])
def test_mutants_from_a_worker(is_stranger: bool) -> None:
    """A stranger changes nothing at all; a worker that sends nonsense is lost, or its step fails; nobody is stuck."""
    chance, replica = random.Random(SEED), Replica()
    frames = [device.to_scheduler_codec().encode(message) for message in FROM_WORKERS]
    identity = b"stranger" if is_stranger else Replica.WORKER
    for number, mutant in enumerate(mutants(chance, frames[1:] if is_stranger else frames, MUTANTS)):
        replica.device.incoming.append([identity, mutant])
        if number % BATCH == BATCH - 1:
            replica.turn()
            replica.check()
            if is_stranger and number % (MUTANTS // 40) < BATCH:
                replica.step()
    assert replica.workers.malformed > MUTANTS // 20
    if is_stranger:
        replica.finish()
    else:
        replica.from_worker(device.WorkerBye(9))
        replica.turn()
        replica.join_worker()
        replica.turn()
        assert replica.core.is_ready
    replica.check()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The worker's link and runner over a tiny model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from gpu_worker.faults import FaultInjector
    from gpu_worker.loading.loader import open_model
    from gpu_worker.service import WorkerService
    from gpu_worker.threads import ThreadPlan

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    settings = Settings(
        model=ModelSettings(source=str(folder), dtype="float32"),
        ipc=IpcSettings(run_dir=str(tmp_path_factory.mktemp("run"))),
        scheduler=SchedulerSettings(max_num_seqs=4, max_num_batched_tokens=32),
        worker=WorkerSettings(metrics_listen="", kv_cache_bytes=1 << 18, num_threads=1),
    )
    files = open_model(resolve_model(settings.model.source))
    stop = StopSignal()
    service = WorkerService(settings, files.config, FaultInjector())
    yield service.load(files, ThreadPlan(1, 0, ()), stop)
    service.close()
    stop.close()


def test_mutants_of_plans(worker: Any) -> None:
    """A plan that makes no sense is refused and changes nothing: after a snapshot the tokens are as ever."""
    from gpu_worker.heartbeat import Progress
    from gpu_worker.link import SchedulerLink

    chance, socket = random.Random(SEED), FrameSocket()
    runner, epoch = worker.runner, worker.runner.counters and worker.runner._epoch
    link = SchedulerLink(socket, worker.geometry, epoch, IpcSettings(), Progress())  # type: ignore[arg-type]
    encode = device.to_worker_codec().encode
    frames = [encode(message) for message in _plans(epoch)]
    wanted = _two_tokens(runner, epoch, 1)
    step = 100
    for number, mutant in enumerate(mutants(chance, frames, MUTANTS)):
        socket.incoming.append([mutant])
        link.receive()
        while (plan := link.next_plan()) is not None:
            if number % EXECUTED == 0:
                runner.execute(plan)
        if number % BATCH == BATCH - 1:
            step = max(step, runner.last_step) + 10
            assert _two_tokens(runner, epoch, step) == wanted
    assert link.malformed > MUTANTS // 20


def _plans(epoch: int) -> list[device.ToWorker]:
    first = device.BoardedRow(0, pack_u32([5, 9, 14]), 3, 0, pack_u32([2]), 0, SAMPLING)
    second = device.BoardedRow(1, pack_u32(range(3, 25)), 20, 16, pack_u32([3, 4]), 1, SamplingParams(temperature=0))
    return [
        device.Plan(epoch, 1, True, boarded=(first, second), chunks=pack_u32([0, 3, 1, 6])),
        device.Plan(epoch, 2, decode=pack_u32([0, 1])),
        device.Plan(epoch, 3, left=pack_u32([0]), appended=pack_u32([1, 5]), decode=pack_u32([1])),
        device.Plan(epoch, 7, True, boarded=(second,), copies=pack_u32([3, 6]), chunks=pack_u32([1, 6])),
        device.SchedulerBeat(4),
    ]


def _two_tokens(runner: Any, epoch: int, step: int) -> list[int]:
    row = device.BoardedRow(0, pack_u32([5, 9, 14, 3]), 4, 0, pack_u32([2]), 0, SamplingParams(temperature=0))
    plans = [
        device.Plan(epoch, step, True, boarded=(row,), chunks=pack_u32([0, 4])),
        device.Plan(epoch, step + 1, decode=pack_u32([0])),
    ]
    results = [runner.execute(plan) for plan in plans]
    assert all(isinstance(result, device.StepDone) for result in results), results
    return [token for result in results for token in unpack_u32(result.sampled)]
