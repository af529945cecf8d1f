"""Drives the real core through a workload in virtual time, with a cost model as its device.

Nothing is slept and no clock is read: time jumps to the next arrival, result or timer. Owns the order of events; what
is measured is the observer's.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.cost_model import StepCosts, StepShape
from scheduler_svc.core.effects import Effect, Emit, SendPlan, WakeAt
from scheduler_svc.core.hash_source import HashSource
from scheduler_svc.sim.counting_device import CountingDevice
from scheduler_svc.sim.workload import Arrival, PromptMaker

_GATEWAY = 1
_EPOCH = 1
_START_NS = 1_000_000_000
_SAMPLING = SamplingParams(ignore_eos=True)


class SimulatedHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The device that is simulated. The default resembles an 8B model in bfloat16 on one H100."""

    costs: StepCosts = StepCosts(fixed=6_000_000.0, decode_row=18_000.0, prefill_token=42_000.0, kv_token=1.4)
    num_blocks: int = 24_000
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32_768
    num_host_blocks: int = 0
    swap_block_ns: int = 200_000
    """To copy one block to or from the host."""

    def geometry(self) -> device.Geometry:
        """As a worker would announce it. Every 32-bit number but the last is a token."""
        return device.Geometry(
            model="simulated",
            fingerprint="simulated",
            vocab_size=(1 << 32) - 1,
            max_model_len=self.max_model_len,
            eos_token_ids=(),
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_bytes_per_token=131_072,
            dtype="none",
            deterministic=True,
        )


class Observer(Protocol):
    """What a simulation tells while it runs; times in nanoseconds since its beginning."""

    def arrived(self, number: int, arrival: Arrival) -> None:
        """Request `number` is handed in."""

    def finished(self, number: int, message: front.Finished, now: int) -> None:
        """It ended."""

    def refused(self, number: int, message: front.Refused, now: int) -> None:
        """It was turned away."""

    def resumed(self, gap_ns: int) -> None:
        """A stream that had lost its seat got its next token, so long after the one before."""

    def stepped(self, core: Core, shape: StepShape, began: int, now: int) -> None:
        """A step has been computed and its result taken in; the core is as it was before the next plan."""


class _Running(msgspec.Struct):
    plan: device.Plan
    shape: StepShape
    began: int
    ends: int


class Simulator:
    """One replica, one workload, once."""

    def __init__(
        self,
        config: SchedulingConfig,
        hardware: SimulatedHardware,
        observer: Observer,
        seed: int = 0,
        make_hashes: Callable[[int], HashSource] | None = None,
    ) -> None:
        """`make_hashes` gives prompts their prefixes where their tokens do not; see `what_if`."""
        self.core = Core(config, b"simulated", _EPOCH, make_hashes)
        self._costs = hardware.costs
        self._swap_block_ns = hardware.swap_block_ns
        self._observer = observer
        self._prompts = PromptMaker(seed)
        self._device = CountingDevice(_EPOCH)
        self._plans: deque[tuple[device.Plan, StepShape]] = deque()
        self._running: _Running | None = None
        self._now = _START_NS
        self._wake_at: int | None = None
        self._number = 0
        self._ends = array("Q", [0])
        """When each step ended."""
        self.num_swapped_blocks = 0
        """Copies of a block to or from the host."""
        self._apply(self.core.handle(events.WorkerUp(_EPOCH, hardware.geometry()), self._now))

    def run(self, arrivals: Iterator[Arrival]) -> int:
        """Until every request has ended; returns the virtual nanoseconds that it took."""
        upcoming = next(arrivals, None)
        while True:
            times = [] if upcoming is None else [_START_NS + upcoming.at_ns]
            if self._running is not None:
                times.append(self._running.ends)
            if self._wake_at is not None and not self.core.is_idle:
                times.append(self._wake_at)
            if not times:
                return self._now - _START_NS
            self._now = max(self._now, min(times))
            if self._wake_at is not None and self._wake_at <= self._now:
                self._wake_at = None
            while upcoming is not None and _START_NS + upcoming.at_ns <= self._now:
                self._submit(upcoming)
                upcoming = next(arrivals, None)
            if self._running is not None and self._running.ends <= self._now:
                self._finish_step(self._running)
            self._apply(self.core.handle(events.Tick(), self._now))
            self._start_step()

    def _submit(self, arrival: Arrival) -> None:
        self._number += 1
        self._observer.arrived(self._number, arrival)
        message = front.Submit(
            handle=self._number * front.MAX_CHOICES,
            tenant=arrival.tenant,
            request_id=str(self._number),
            digest=bytes(16),
            prompt=self._prompts.make(arrival),
            sampling=_SAMPLING,
            n=arrival.num_choices,
            max_tokens=arrival.output_len,
            priority=arrival.priority,
            age_ns=self._now - _START_NS - arrival.at_ns,
        )
        self._apply(self.core.handle(events.Submit(_GATEWAY, message), self._now))

    def _start_step(self) -> None:
        if self._running is None and self._plans:
            plan, shape = self._plans.popleft()
            num_swapped = (len(plan.swap_out) + len(plan.swap_in)) // 8
            took = self._step_ns(shape) + num_swapped * self._swap_block_ns
            self.num_swapped_blocks += num_swapped
            self._running = _Running(plan, shape, self._now, self._now + took)

    def _step_ns(self, shape: StepShape) -> int:
        """How long the device takes."""
        return max(round(self._costs.step_ns(shape)), 1)

    def _finish_step(self, step: _Running) -> None:
        self._running = None
        # Before the result makes it forget: who samples anew after a loss of its seat, and when it last had a token.
        samplers = self.core.state.in_flight[0].samplers
        stalled = [one.token_step for one in samplers if one.token_step and not one.is_ended]
        self._ends.append(self._now)
        done = msgspec.structs.replace(self._device.execute(step.plan), device_ns=step.ends - step.began)
        self._apply(self.core.handle(events.StepDone(done), self._now))
        for token_step in stalled:
            self._observer.resumed(self._now - self._ends[token_step])
        self._observer.stepped(self.core, step.shape, step.began - _START_NS, self._now - _START_NS)

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPlan(plan):
                    self._plans.append((plan, self.core.shape_of(plan.step)))
                case Emit(_, front.Finished() as message):
                    self._observer.finished(message.handle // front.MAX_CHOICES, message, self._now - _START_NS)
                case Emit(_, front.Refused() as message):
                    self._observer.refused(message.handle // front.MAX_CHOICES, message, self._now - _START_NS)
                case WakeAt(at_ns):
                    self._wake_at = at_ns
                case _:
                    pass
