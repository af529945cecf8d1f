"""A recording's arrivals under other knobs."""

import io

import msgspec
import pytest

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.core.frames import RecordError, read_frames, read_header
from scheduler_svc.core.recording import RecordedCore
from scheduler_svc.sim.counting_device import CountingDevice
from scheduler_svc.sim.outcome import Objective
from scheduler_svc.sim.what_if import RecordedLoad, read_load, simulate_load

MS = 1_000_000
GEOMETRY = device.Geometry("m", "f", 1000, 512, (2,), 16, 400, 0, 8, 256, 4, "float32")


def record(num_requests: int) -> bytes:
    """One tenant floods, another asks now and then; prompts share a beginning; a step takes 2 ms + 20 µs a token."""
    frames: list[bytes] = []
    recorded = RecordedCore(SchedulingConfig(), b"key", 1, frames.append, name_key=b"names")
    frames.append(recorded.header("test"))
    worker, now, free_at = CountingDevice(1), 0, 0
    recorded.handle(events.WorkerUp(1, GEOMETRY), now)
    plans: list[tuple[device.Plan, int]] = []
    number = 0
    while number < num_requests or plans or recorded.core.load().running or recorded.core.load().waiting:
        now += MS
        if number < num_requests:
            number += 1
            tenant = "quiet" if number % 20 == 0 else "flood"
            prompt = pack_u32([*range(64), number])
            sampling = SamplingParams(ignore_eos=True)
            submit = front.Submit(256 * number, tenant, str(number), bytes(16), prompt, sampling, max_tokens=20)
            recorded.handle(events.Submit(1, submit), now)
        while plans and free_at <= now:
            plan, took = plans.pop(0)
            done = msgspec.structs.replace(worker.execute(plan), device_ns=took)
            recorded.handle(events.StepDone(done), now)
            free_at = now + took
        for effect in recorded.handle(events.Tick(), now):
            if isinstance(effect, SendPlan):
                shape = recorded.core.shape_of(effect.plan.step)
                plans.append((effect.plan, 2 * MS + 20_000 * (shape.num_decodes + shape.num_prefill_tokens)))
    return b"".join(frames)


@pytest.fixture(scope="module")
def load() -> RecordedLoad:
    file = io.BytesIO(record(150))
    return read_load(read_header(file), read_frames(file))


def test_the_load_is_what_was_recorded(load: RecordedLoad) -> None:
    assert len(load.arrivals) == 150
    assert {arrival.output_len for arrival in load.arrivals} == {20}
    assert {arrival.prompt_len for arrival in load.arrivals} == {65}
    assert len({arrival.tenant for arrival in load.arrivals}) == 2
    assert load.arrivals[10].at_ns - load.arrivals[0].at_ns == 10 * MS
    assert load.costs.step_ns(StepShape(8, 1, 600)) == pytest.approx(2.18 * MS, rel=0.1)


def test_the_same_knobs_give_the_same_work_and_share_the_same_prefixes(load: RecordedLoad) -> None:
    report = simulate_load(load, load.config, Objective())
    assert report.requests == 150
    assert report.cached_share == pytest.approx(149 * 64 / (150 * 65), abs=0.02)


def test_another_policy_is_compared_on_the_same_arrivals(load: RecordedLoad) -> None:
    fcfs = simulate_load(load, load.config, Objective())
    fair = simulate_load(load, msgspec.structs.replace(load.config, policy="fair"), Objective())
    quiet = min(fcfs.tenants, key=lambda name: fcfs.tenants[name].requests)
    assert fair.tenants[quiet].mean_ttft_ms < fcfs.tenants[quiet].mean_ttft_ms
    assert fair.output_tokens_per_s == pytest.approx(fcfs.output_tokens_per_s, rel=0.1)


def test_a_recording_without_requests_is_told() -> None:
    file = io.BytesIO(record(0))
    with pytest.raises(RecordError, match="no request"):
        read_load(read_header(file), read_frames(file))
