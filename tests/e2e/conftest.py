"""The engine in one process (real core, real runner), and the whole stack as a user starts it."""

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc
import msgspec
import pytest
import torch

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32, unpack_u64
from chairlift.runtime.model_source import BUILT_IN, resolve_model
from chairlift.runtime.settings import ModelSettings, Settings
from chairlift.v1 import ops_pb2, ops_pb2_grpc
from gpu_worker.backends.backend import Model
from gpu_worker.backends.choose import choose_backend
from gpu_worker.backends.native_decoder import NativeDecoder
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.loading.loader import open_model
from gpu_worker.runner import Runner
from gpu_worker.sampling.choose import greedy_rows
from gpu_worker.sizes import choose_sizes
from gpu_worker.threads import plan_threads
from scheduler_svc.core import effects, events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_MAX_MODEL_LEN = 1024


@dataclass
class Answer:
    """What one request got: ids by choice, its ends, and the number of the step that gave each id."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, front.Finished] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    refused: front.Refused | None = None


class Engine:
    """Submit requests, then `run` until every one has ended. Plans travel as bytes, as between processes."""

    def __init__(self, runner: Runner, geometry: device.Geometry, config: SchedulingConfig) -> None:
        self.core = Core(config, b"key", epoch=1)
        self.answers: dict[int, Answer] = {}
        self.step_sizes: list[int] = []
        self.num_swapped_blocks = 0
        self._runner = runner
        self._codec = device.to_worker_codec()
        self._now = 0
        self._wake_at: int | None = None
        self._in_flight: deque[device.Plan] = deque()
        runner.forget()
        self._handle(events.WorkerUp(_EPOCH, geometry))

    def submit(self, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY, **fields: Any) -> int:
        """Hands in a request; returns the handle that `answers` knows it by."""
        handle = (len(self.answers) + 1) << front.CHOICE_BITS
        self.answers[handle] = Answer()
        name = f"r{handle}"
        message = front.Submit(
            handle, "t", name, bytes(16), pack_u32(prompt), sampling, max_tokens=max_tokens, **fields
        )
        self._handle(events.Submit(1, message))
        return handle

    def run(self, on_step: Callable[[int], None] = lambda step: None) -> None:
        """Steps until nothing is left to do. `on_step` is called before each step's result is handled."""
        self._handle(events.Tick())
        while self._in_flight or self._wait():
            plan = self._in_flight.popleft()
            result = self._runner.execute(plan)
            assert isinstance(result, device.StepDone), result
            self.step_sizes.append(sum(unpack_u32(plan.chunks)[1::2]) + len(plan.decode) // 4)
            self.num_swapped_blocks += len(plan.swap_out) // 8
            on_step(plan.step)
            self._handle(events.StepDone(result))
            self._handle(events.Tick())
        assert self.core.is_idle
        load = self.core.load()
        assert (load.blocks_used, load.running, load.waiting) == (0, 0, 0)

    def _wait(self) -> bool:
        """Goes to the time that the core asked to be woken at; whether that gave something to run."""
        if self.core.is_idle or self._wake_at is None:
            return False
        self._now, self._wake_at = max(self._now, self._wake_at), None
        self._handle(events.Tick())
        return bool(self._in_flight)

    def tokens(self, handle: int, choice: int = 0) -> list[int]:
        """Output ids of one choice."""
        return self.answers[handle].tokens.get(choice, [])

    def _handle(self, event: events.Event) -> None:
        self._now += 1_000_000
        for effect in self.core.handle(event, self._now):
            match effect:
                case effects.SendPlan(plan):
                    sent = self._codec.decode(self._codec.encode(plan))
                    assert isinstance(sent, device.Plan)
                    self._in_flight.append(sent)
                case effects.Emit(_, message):
                    self._take(message)
                case effects.WakeAt(at_ns):
                    self._wake_at = at_ns

    def _take(self, message: front.ToGateway) -> None:
        match message:
            case front.Deltas():
                self._take_deltas(message)
            case front.Finished():
                self._answer(message.handle).ends[message.handle % front.MAX_CHOICES] = message
            case front.Refused():
                self._answer(message.handle).refused = message
            case _:
                pass

    def _take_deltas(self, deltas: front.Deltas) -> None:
        tokens = iter(unpack_u32(deltas.tokens))
        handles, offsets = unpack_u64(deltas.handles), unpack_u32(deltas.offsets)
        counts = unpack_u32(deltas.counts) or [1] * len(handles)
        for handle, offset, count in zip(handles, offsets, counts, strict=True):
            known = self._answer(handle).tokens.setdefault(handle % front.MAX_CHOICES, [])
            assert len(known) == offset, "each offset comes once and in order"
            known += [next(tokens) for _ in range(count)]
            self._answer(handle).steps.append(len(self.step_sizes))

    def _answer(self, handle: int) -> Answer:
        return self.answers[handle - handle % front.MAX_CHOICES]


_EPOCH = 77


class EngineFactory:
    """Makes engines that share one loaded model; each has a cache of its own, NaN wherever nothing was written."""

    def __init__(self, model: Model, dtype: torch.dtype, max_model_len: int = _MAX_MODEL_LEN) -> None:
        self.model = model
        self._dtype = dtype
        self._max_model_len = max_model_len

    def __call__(
        self,
        num_blocks: int = 400,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 1024,
        num_host_blocks: int = 0,
        **knobs: Any,
    ) -> Engine:
        config, model_len = self.model.config, self._max_model_len
        limits = BatchLimits(
            max_num_seqs, max_num_batched_tokens, model_len, config.vocab_size, num_blocks, 16, num_host_blocks
        )
        cache = KvCache(KvGeometry.of(config, 16, self._dtype), num_blocks, torch.device("cpu"))
        cache.poison(torch.arange(num_blocks))
        geometry = device.Geometry(
            "model", "f00d", config.vocab_size, model_len, tuple(config.eos_token_ids), 16, num_blocks,
            num_host_blocks, max_num_seqs, max_num_batched_tokens, cache.geometry.bytes_per_token, str(self._dtype),
        )  # fmt: skip
        decoder = self.model.new_decoder(limits)
        greedy = decoder.greedy if isinstance(decoder, NativeDecoder) else greedy_rows
        runner = Runner(decoder, cache, limits, _EPOCH, greedy=greedy)
        return Engine(runner, geometry, msgspec.structs.replace(SchedulingConfig(), **knobs))


@pytest.fixture(scope="session")
def engines_of() -> Callable[..., EngineFactory]:
    """Engines of the built-in model, run by what the product chooses for these settings."""

    def load(dtype: Literal["float32", "bfloat16"], quantization: Literal["none", "int8", "gguf"]) -> EngineFactory:
        settings = Settings(model=ModelSettings(dtype=dtype, quantization=quantization))
        files = open_model(resolve_model(BUILT_IN))
        sizes = choose_sizes(settings, files.config)
        threads = plan_threads(None, settings.worker.thread_spin_us, None)
        return EngineFactory(choose_backend(settings, files, sizes, threads).load(files), sizes.dtype)

    return load


@pytest.fixture(scope="session")
def smollm2(engines_of: Callable[..., EngineFactory]) -> EngineFactory:
    """Engines of the built-in model in float32."""
    return engines_of("float32", "none")


_LOOPBACK = "127.0.0.1:0"
_LISTENERS = ("gateway.listen", "gateway.ops_listen", "gateway.metrics_listen", "scheduler.metrics_listen",
              "worker.metrics_listen")  # fmt: skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama of two layers whose tokens are the 256 bytes: a process loads it at once."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, eos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class ServedStack:
    """`chairlift serve` as a user starts it: one command, three processes. The system chooses the ports, since stacks
    of other tests may run at the same time; the banner tells them."""

    listen: str
    ops: str
    """Of the first gateway."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.run_dir = folder / "run"
        self.log_path = folder / "serve.log"
        settings = [f"ipc.run_dir={self.run_dir}", "telemetry.log_format=json", "worker.num_threads=1"]
        settings += [*(f"{name}={_LOOPBACK}" for name in _LISTENERS), *arguments]
        command = [sys.executable, "-m", "deploy.cli", "serve"]
        command += [part for setting in settings for part in ("--set", setting)]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        """What all processes have written so far."""
        return self.log_path.read_text()

    def wait_ready(self) -> "ServedStack":
        """Returns once the banner is printed; fails when the stack ends first."""
        deadline = time.monotonic() + 150
        while "chairlift generate" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        self.listen, self.ops = self._told(r"^  gRPC +(\S+)"), self._told(r"^  operator +([^\s,]+)")
        return self

    @property
    def http(self) -> str:
        """The port of OpenAI's API, where the settings ask for one."""
        return self._told(r"^  HTTP +http://([^/]+)/v1")

    def _told(self, pattern: str) -> str:
        found = re.search(pattern, self.log(), re.MULTILINE)
        assert found is not None, self.log()
        return found[1]

    def children(self) -> dict[str, int]:
        """Process ids by module name."""
        found = {}
        for child in _children_of(self.process.pid):
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found[command[2].decode()] = child
        return found

    def load(self) -> ops_pb2.ReplicaLoad:
        """The core's own counts, by the operator port."""
        with grpc.insecure_channel(self.ops) as channel:
            reply = ops_pb2_grpc.OpsServiceStub(channel).GetLoad(ops_pb2.GetLoadRequest(), timeout=30)
        return reply.replicas[0]

    def stop(self) -> int:
        """SIGTERM; returns the exit code once every process is gone."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def _children_of(pid: int) -> list[int]:
    """Direct children of a process (Linux)."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="session")
def make_stack() -> Callable[..., ServedStack]:
    """`make_stack(folder, *settings)` starts one that the caller ends."""
    return ServedStack


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedStack]]:
    """Starts stacks of a test's own; what is left of them is killed at the end."""
    started: list[ServedStack] = []

    def _serve(*arguments: str) -> ServedStack:
        started.append(ServedStack(tmp_path, *arguments))
        return started[-1]

    yield _serve
    for stack in started:
        if stack.process.poll() is None:
            stack.process.kill()
            stack.process.wait(30)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStack]:
    """One stack, of two gateways and with HTTP, for every test that only talks to it. It must end well and leave
    nothing."""
    settings = ("scheduler.max_num_seqs=32", "supervisor.gateways=2", f"gateway.http_listen={_LOOPBACK}")
    served = ServedStack(tmp_path_factory.mktemp("stack"), *settings)
    try:
        served.wait_ready()
        children = served.children()
        yield served
        assert served.stop() == 0, served.log()
        assert not [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]
        assert not list(served.run_dir.glob("*.sock"))
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait(30)
