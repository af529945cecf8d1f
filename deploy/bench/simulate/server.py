"""One replica in virtual time: the real core, a device that executes its plans to the letter, costs by the model.

Owns the order of events; knows nothing of workloads. Runs in the loop's thread, never waits for anything but timers.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.tokens import unpack_u32, unpack_u64
from deploy.bench.simulate.device_cost import DeviceCost
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect, Emit, SendPlan, WakeAt
from scheduler_svc.sim.paged_device import PagedDevice

_GATEWAY = 1
_EPOCH = 1

Output = front.Accepted | front.Refused | front.Finished | tuple[int, ...]
"""What a stream gets: token ids are a tuple."""


class SimulatedServer:
    """Takes requests and hands each stream its output as it comes."""

    def __init__(self, config: SchedulingConfig, geometry: device.Geometry, cost: DeviceCost) -> None:
        """Must be made inside the loop that it is to run in."""
        self._loop = asyncio.get_running_loop()
        self._core = Core(config, b"simulated", _EPOCH)
        self._device = PagedDevice(geometry, _EPOCH)
        self._cost = cost
        self._plans: deque[device.Plan] = deque()
        self._is_busy = False
        self._is_tick_due = False
        self._wake: asyncio.TimerHandle | None = None
        self._streams: dict[int, Callable[[Output], None]] = {}
        self._next_handle = 0
        self._feed(events.WorkerUp(_EPOCH, geometry))

    def load(self) -> front.Load:
        """The core's own counts."""
        return self._core.load()

    def submit(self, make_message: Callable[[int], front.Submit], on_output: Callable[[Output], None]) -> int:
        """Hands in a request whose message is made for its handle; returns the handle."""
        self._next_handle += front.MAX_CHOICES
        handle = self._next_handle
        self._streams[handle] = on_output
        self._feed(events.Submit(_GATEWAY, make_message(handle)))
        return handle

    def detach(self, handle: int) -> None:
        """The client went away."""
        if self._streams.pop(handle, None) is not None:
            self._feed(events.Detach(_GATEWAY, front.Detach(handle)))

    def _feed(self, event: events.Event) -> None:
        """One event, and a tick once everything of this moment has arrived, so that a burst boards together."""
        self._carry_out(self._core.handle(event, self._now_ns()))
        if not self._is_tick_due:
            self._is_tick_due = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._is_tick_due = False
        self._carry_out(self._core.handle(events.Tick(), self._now_ns()))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPlan(plan):
                    self._plans.append(plan)
                    self._start_step()
                case Emit(_, message):
                    self._deliver(message)
                case WakeAt(at_ns):
                    if self._wake is not None:
                        self._wake.cancel()
                    self._wake = self._loop.call_at(at_ns / 1e9, self._tick)

    def _start_step(self) -> None:
        if self._is_busy or not self._plans:
            return
        plan = self._plans.popleft()
        result = self._device.execute(plan)
        assert isinstance(result, device.StepDone), "the device has no faults here"
        self._is_busy = True
        took_ns = self._cost.step_ns(plan)
        # The core learns from it what steps cost, which its targets of latency go by.
        timed = msgspec.structs.replace(result, device_ns=took_ns)
        self._loop.call_later(took_ns / 1e9, self._end_step, timed)

    def _end_step(self, result: device.StepDone) -> None:
        self._is_busy = False
        self._start_step()
        self._feed(events.StepDone(result))

    def _deliver(self, message: front.ToGateway) -> None:
        match message:
            case front.Accepted() | front.Refused() | front.Finished():
                is_last = not isinstance(message, front.Accepted)
                stream = self._streams.pop(message.handle, None) if is_last else self._streams.get(message.handle)
                if stream is not None:
                    stream(message)
            case front.Deltas():
                self._deliver_tokens(message)
            case _:
                return  # answers to questions that nobody asks here

    def _deliver_tokens(self, message: front.Deltas) -> None:
        handles, tokens = unpack_u64(message.handles), unpack_u32(message.tokens)
        counts = unpack_u32(message.counts) if message.counts else (1,) * len(handles)
        start = 0
        for handle, count in zip(handles, counts, strict=True):
            stream = self._streams.get(handle)
            if stream is not None:
                stream(tuple(tokens[start : start + count]))
            start += count

    def _now_ns(self) -> int:
        return round(self._loop.time() * 1e9)
