"""What the scheduler's core costs alone: a result in, the next plan and all deltas encoded.

Measures the real core with a device that only counts. One figure is one step: decode the result, `handle(StepDone)`,
`handle(Tick)`, encode every effect. What other programs do on the machine only ever adds to it, so each figure is that
of the quietest of several rounds, by its mean.
"""

import gc
import random
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect, Emit, SendPlan
from scheduler_svc.core.prefix import PrefixHasher
from scheduler_svc.core.recording import RecordedCore
from scheduler_svc.sim.counting_device import CountingDevice

RUNNING = (64, 256, 1024)
NUM_GATEWAYS = 2
NUM_TENANTS = 8
VOCAB_SIZE = 49_152
STEP_NS = 10_000_000
SAMPLING = SamplingParams(ignore_eos=True)


def _forget(frame: bytes) -> None:
    """A recording that is made and kept nowhere."""


class Bench:
    """One core with a batch of one size, driven step by step."""

    def __init__(self, num_seqs: int, *, max_step: int = 8192, is_recorded: bool = False, **knobs: Any) -> None:
        self.random = random.Random(0)
        geometry = device.Geometry(
            "bench", "f", VOCAB_SIZE, 1 << 17, (2,), 16, 160 * num_seqs + 40_000, 0, num_seqs, max_step, 4, "bfloat16"
        )
        config = SchedulingConfig(**knobs)
        if is_recorded:
            recorded = RecordedCore(config, b"bench", 1, _forget, name_key=b"bench")
            self.core, self.handle = recorded.core, recorded.handle
        else:
            self.core = Core(config, b"bench", 1)
            self.handle = self.core.handle
        self.device = CountingDevice(1)
        self.now = STEP_NS
        self.plans: list[device.Plan] = []
        self.num_ended = 0
        self._handle = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(device.StepDone).decode
        self.handle(events.WorkerUp(1, geometry), self.now)

    def submit(self, prompt_len: int, max_tokens: int) -> int:
        """Hands in one request; returns how long that took."""
        self._handle += front.MAX_CHOICES
        number = self._handle // front.MAX_CHOICES
        prompt = pack_u32([self.random.randrange(1000, 48_000) for _ in range(prompt_len)])
        message = front.Submit(
            handle=self._handle,
            tenant=f"tenant{number % NUM_TENANTS}",
            request_id=f"request-{number:08d}",
            digest=number.to_bytes(16, "little"),
            prompt=prompt,
            sampling=SAMPLING,
            max_tokens=max_tokens,
        )
        event = events.Submit(number % NUM_GATEWAYS, message)
        started = time.thread_time_ns()
        for effect in self.handle(event, self.now):
            if isinstance(effect, Emit):
                self._encode(effect.message)
        return time.thread_time_ns() - started

    def tick(self) -> None:
        """Plans, without measuring."""
        self._take(self.handle(events.Tick(), self.now))

    def step(self) -> int:
        """One step; returns the nanoseconds that the core and the codecs took."""
        if not self.plans:
            self.tick()
        frame = self._encode(self._answer(self.plans.pop(0)))
        self.now += STEP_NS
        started = time.thread_time_ns()
        effects = self.handle(events.StepDone(self._decode(frame)), self.now)
        effects += self.handle(events.Tick(), self.now)
        for effect in effects:
            if isinstance(effect, SendPlan):
                self._encode(effect.plan)
            elif isinstance(effect, Emit):
                self._encode(effect.message)
        took = time.thread_time_ns() - started
        self._take(effects)
        return took

    def _answer(self, plan: device.Plan) -> device.StepDone:
        choose = self.random.choices
        sampled = array("I", choose(range(1000, 48_000), k=self.device.num_sampled(plan)))
        return device.StepDone(1, plan.step, sampled.tobytes(), device_ns=STEP_NS)

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendPlan):
                self.plans.append(effect.plan)
            elif isinstance(effect, Emit) and isinstance(effect.message, front.Finished):
                self.num_ended += 1

    def run_until_all_decode(self) -> None:
        """Steps until every seated sequence is in the decode column."""
        for _ in range(10_000):
            self.step()
            if self.plans and not self.plans[-1].chunks and not self.core.state.batch.catching_up:
                return
        raise RuntimeError("the batch never came to rest")


def measure(bench: Bench, num_steps: int, before: Callable[[], None] | None = None) -> dict[str, float]:
    """Median, mean and p99 of a step, in µs. `before` runs before each step and is not measured."""
    gc.collect()
    gc.freeze()
    times = []
    for _ in range(num_steps):
        if before is not None:
            before()
        times.append(bench.step() / 1000)
    gc.unfreeze()
    times.sort()
    return {
        "median_us": round(statistics.median(times), 1),
        "mean_us": round(statistics.fmean(times), 1),
        "p99_us": round(times[int(len(times) * 0.99)], 1),
    }


def steady(
    num_seqs: int, num_steps: int, num_waiting: int = 0, *, is_aligned: bool = False, is_recorded: bool = False
) -> dict[str, float]:
    """All decode; prompts of staggered lengths unless aligned, when every block border falls on one step."""
    max_step = 256 * num_seqs if is_aligned else 8192
    bench = Bench(num_seqs, max_step=max_step, is_recorded=is_recorded, max_num_queued_reqs=100_000)
    for number in range(num_seqs):
        bench.submit(128 if is_aligned else 100 + number % 64, max_tokens=100_000)
    bench.run_until_all_decode()
    for _ in range(num_waiting):
        bench.submit(64, max_tokens=64)
    return measure(bench, num_steps)


def mixed_prefill(num_seqs: int, num_steps: int) -> dict[str, float]:
    """Half of the seats decode; one long prompt after another is computed beside them in chunks of 512."""
    bench = Bench(num_seqs, long_prefill_token_threshold=512)
    for _ in range(num_seqs // 2):
        bench.submit(100 + bench.random.randrange(64), max_tokens=100_000)
    bench.run_until_all_decode()

    def keep_one_prompt_waiting() -> None:
        if not bench.core.state.batch.catching_up and not len(bench.core.state.queue):
            bench.submit(4096, max_tokens=1)

    return measure(bench, num_steps, keep_one_prompt_waiting)


def churn(num_seqs: int, num_steps: int) -> dict[str, float]:
    """Lengths like the Azure conversation trace's (log-normal, means 1,155 and 211); one arrival an end."""
    bench = Bench(num_seqs, max_num_queued_reqs=100_000)
    draw = bench.random.lognormvariate

    def arrive(share: float = 1.0) -> None:
        prompt_len = min(max(int(draw(6.6, 0.95)), 16), 8000)
        bench.submit(prompt_len, max_tokens=max(int(draw(5.1, 0.7) * share), 2))

    for _ in range(num_seqs):
        arrive(bench.random.random())
    bench.run_until_all_decode()
    ended = bench.num_ended

    def one_arrival_an_end() -> None:
        nonlocal ended
        while ended < bench.num_ended:
            ended += 1
            arrive()

    for _ in range(100):
        one_arrival_an_end()
        bench.step()
    return measure(bench, num_steps, one_arrival_an_end)


def submits(num_waiting: int) -> dict[str, float]:
    """A Submit with `num_waiting` waiting, the prediction of its first token included, the hashing of its blocks told
    apart; and what a waiting request weighs beyond its token ids."""
    prompt_len = 256
    bench = Bench(64, max_num_queued_reqs=100_000)
    for _ in range(64):
        bench.submit(128, max_tokens=100_000)
        # One prompt after another, so that the core learns what prefill costs: it predicts nothing before.
        bench.run_until_all_decode()
    assert bench.core.state.cost_model.costs is not None, "nothing is predicted, so nothing of it would be measured"
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(num_waiting):
        bench.submit(prompt_len, max_tokens=64)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    times = [bench.submit(prompt_len, max_tokens=64) / 1000 for _ in range(min(num_waiting, 1000))]
    hash_us = _hashing_us(prompt_len)
    return {
        "submit_us": round(statistics.median(times) - hash_us, 1),
        "submit_hashing_us": round(hash_us, 1),
        "bytes_per_waiting": round((after - before) / num_waiting - 4 * prompt_len),
    }


def _hashing_us(prompt_len: int) -> float:
    hasher, times = PrefixHasher(b"bench", 16), []
    for _ in range(1000):
        started = time.thread_time_ns()
        hasher.extend(b"", bytes(4 * prompt_len))
        times.append((time.thread_time_ns() - started) / 1000)
    return statistics.median(times)


def _quietest(measure_once: Callable[[], dict[str, float]], num_rounds: int) -> dict[str, float]:
    return min((measure_once() for _ in range(num_rounds)), key=lambda figures: figures["mean_us"])


def run(num_steps: int, num_rounds: int = 3, num_waiting: int = 10_000) -> dict[str, Any]:
    """Everything, as the command prints it."""
    kinds: dict[str, Callable[[int], dict[str, float]]] = {
        "steady": lambda n: steady(n, num_steps),
        "steady_aligned": lambda n: steady(n, num_steps, is_aligned=True),
        "steady_recorded": lambda n: steady(n, num_steps, is_recorded=True),
        "waiting_10000": lambda n: steady(n, num_steps, num_waiting=num_waiting),
        "mixed_prefill": lambda n: mixed_prefill(n, num_steps),
        "churn": lambda n: churn(n, num_steps),
    }
    result: dict[str, Any] = {
        name: {str(n): _quietest(partial(kind, n), num_rounds) for n in RUNNING} for name, kind in kinds.items()
    }
    result.update(submits(num_waiting))
    return result


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{'µs a step':<24}{'running':>8}{'median':>10}{'mean':>10}{'p99':>10}"]
    for name, by_size in result.items():
        if name != "vllm" and isinstance(by_size, dict):
            lines += _rows(name, by_size)
    for name in ("steady", "waiting_10000"):
        if "vllm" in result:
            lines += _rows(f"vLLM {result['vllm']['version']} {name}", result["vllm"][name])
    lines.append(f"a Submit at 10,000 waiting: {result['submit_us']} µs + {result['submit_hashing_us']} µs of hashing")
    lines.append(f"a waiting request, its token ids aside: {result['bytes_per_waiting']} bytes")
    return "\n".join(lines)


def _rows(name: str, by_size: dict[str, dict[str, float]]) -> list[str]:
    rows = []
    for size, figures in by_size.items():
        cells = (f"{figures[key]:.1f}" if key in figures else "" for key in ("median_us", "mean_us", "p99_us"))
        rows.append(f"{name:<24}{size:>8}" + "".join(f"{cell:>10}" for cell in cells))
    return rows
