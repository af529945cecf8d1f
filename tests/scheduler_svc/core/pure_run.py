"""Runs one fixed life of the core and prints a hash of all its effects; test_purity starts it in processes."""

import hashlib
import random

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.sim.paged_device import PagedDevice

MS = 1_000_000


class Life:
    """A core, a device, and events of every kind."""

    def __init__(self) -> None:
        self.chance = random.Random(5)
        self.geometry = device.Geometry("m", "f", 1000, 120, (2,), 4, 60, 0, 8, 40, 4, "float32")
        self.core = Core(SchedulingConfig(watermark_ppm=20_000), b"key", 3)
        self.digest = hashlib.sha256()
        self.encoder = msgspec.msgpack.Encoder()
        self.plans: list[device.Plan] = []
        self.now = self.handle = 0
        self.worker = PagedDevice(self.geometry, 0)
        self.new_worker()

    def feed(self, event: events.Event) -> None:
        """One event; its effects are hashed."""
        for effect in self.core.handle(event, self.now):
            self.digest.update(self.encoder.encode(effect))
            if isinstance(effect, SendPlan):
                self.plans.append(effect.plan)

    def new_worker(self) -> None:
        """The next life of the worker."""
        self.worker = PagedDevice(self.geometry, self.worker.epoch + 1)
        self.feed(events.WorkerUp(self.worker.epoch, self.geometry))

    def something_happens(self) -> None:
        """One event from outside, or none."""
        chance = self.chance
        self.handle += front.MAX_CHOICES
        tenant, request_id = f"t{chance.randrange(4)}", f"r{chance.randrange(40)}"
        match chance.randrange(12):
            case 0 | 1 | 2:
                self.feed(events.Submit(chance.randrange(3), random_submit(chance, self.handle)))
            case 3:
                self.feed(events.Cancel(0, front.Cancel(1, tenant, request_id)))
            case 4:
                self.feed(events.Attach(chance.randrange(3), front.Attach(self.handle, tenant, request_id)))
            case 5 if chance.random() < 0.1:
                self.feed(events.GatewayLost(chance.randrange(3)))
            case 6 if chance.random() < 0.1:
                self.feed(events.WorkerLost(self.worker.epoch))
                self.new_worker()
            case 7 if chance.random() < 0.2:
                self.worker.fail_steps = 1

    def steps(self) -> None:
        """The device takes a plan or two."""
        self.feed(events.Tick())
        while self.plans:
            answer = self.worker.execute(self.plans.pop(0))
            if isinstance(answer, device.StepDone):
                self.feed(events.StepDone(answer))
            elif isinstance(answer, device.StepFailed):
                self.feed(events.StepFailed(answer))
            if self.chance.random() < 0.7:
                break


def main() -> None:
    """Some 3,000 events."""
    life = Life()
    for _ in range(1500):
        life.now += life.chance.randrange(3 * MS)
        life.something_happens()
        life.steps()
    life.digest.update(life.encoder.encode(life.core.load()))
    print(life.digest.hexdigest(), life.core.load().steps)


def random_submit(chance: random.Random, handle: int) -> front.Submit:
    """A request of a few tenants and prefixes."""
    prompt = [chance.randrange(3)] * chance.randrange(12) + [chance.randrange(1000) for _ in range(1 + handle % 9)]
    return front.Submit(
        handle=handle,
        tenant=f"t{chance.randrange(4)}",
        request_id=f"r{chance.randrange(40)}",
        digest=bytes(16),
        prompt=pack_u32(prompt),
        sampling=SamplingParams(seed=chance.randrange(9), ignore_eos=chance.random() < 0.5),
        n=chance.choice([1, 1, 1, 3]),
        max_tokens=chance.randrange(1, 40),
        priority=chance.randrange(-2, 3),
        deadline_in_ns=chance.choice([None, 80 * MS]),
        detach_grace_ns=chance.choice([0, 30 * MS]),
    )


if __name__ == "__main__":
    main()
