"""Runs one random life of the core; test_purity and test_recording start it in processes of their own.

Arguments: number of rounds, and (optionally) a file to record to, "tokens" or "redacted", after how many rounds a new
file begins (named with a number behind), and which life. Prints a hash of all effects, and how many events and steps.
"""

import hashlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect, SendPlan
from scheduler_svc.core.recording import RecordedCore
from scheduler_svc.sim.paged_device import PagedDevice

MS = 1_000_000
CONFIG = SchedulingConfig(watermark_ppm=20_000, policy="fair", tenants=("t1: weight=3",), max_ended_requests_kept=20)


class Life:
    """A core, a device, and events of every kind."""

    def __init__(self, core: Core, handle: Callable[[events.Event, int], list[Effect]], seed: int = 5) -> None:
        self.chance = random.Random(seed)
        self.geometry = device.Geometry("m", "f", 1000, 120, (2,), 4, 60, 0, 8, 40, 4, "float32")
        self.core = core
        self.handle = handle
        self.digest = hashlib.sha256()
        self.encoder = msgspec.msgpack.Encoder()
        self.plans: list[device.Plan] = []
        self.now = self.base = self.num_events = 0
        self.worker = PagedDevice(self.geometry, 0)
        self.new_worker()

    def feed(self, event: events.Event) -> None:
        """One event; its effects are hashed."""
        self.num_events += 1
        for effect in self.handle(event, self.now):
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
        self.base += front.MAX_CHOICES
        gateway, tenant, request_id = chance.randrange(3), f"t{chance.randrange(4)}", f"r{chance.randrange(40)}"
        match chance.randrange(14):
            case 0 | 1 | 2:
                self.feed(events.Submit(gateway, random_submit(chance, self.base)))
            case 3:
                self.feed(events.Cancel(0, front.Cancel(1, tenant, request_id)))
            case 4:
                self.feed(events.Attach(gateway, front.Attach(self.base, tenant, request_id)))
            case 5:
                handle = self.base - front.MAX_CHOICES * chance.randrange(1, 30)
                self.feed(events.Stopped(gateway, front.Stopped(handle, chance.randrange(4))))
            case 6:
                handle = self.base - front.MAX_CHOICES * chance.randrange(1, 30)
                self.feed(events.Detach(gateway, front.Detach(handle)))
            case 7:
                self.feed(events.Explain(gateway, front.ExplainQuery(1, tenant, request_id)))
            case 8 if chance.random() < 0.3:
                self.something_breaks()
            case 9 if chance.random() < 0.2:
                self.something_changes()

    def something_breaks(self) -> None:
        """A worker, a gateway, a step or a plan is lost."""
        match self.chance.randrange(4):
            case 0:
                self.feed(events.GatewayLost(self.chance.randrange(3)))
            case 1:
                self.feed(events.WorkerLost(self.worker.epoch))
                self.new_worker()
            case 2:
                self.worker.fail_steps = 1
            case _ if self.plans:
                lost = self.plans.pop(0)
                self.feed(events.SnapshotNeeded(device.NeedSnapshot(self.worker.epoch, lost.step)))

    def something_changes(self) -> None:
        """Other knobs, or a flushed cache."""
        chance = self.chance
        changes = {
            "policy": chance.choice(["fcfs", "priority", "fair"]),
            "overlap": chance.random() < 0.7,
            "max_num_seqs": chance.choice([None, 3, 8]),
            "enable_prefix_caching": chance.random() < 0.8,
            "tenant_max_num_seqs": chance.choice([None, 2]),
        }
        self.feed(events.ConfigChanged(msgspec.structs.replace(self.core.config, **changes), comment="private"))
        if chance.random() < 0.3:
            self.feed(events.FlushPrefixCache())

    def steps(self) -> None:
        """The device takes a plan or two."""
        self.feed(events.Tick())
        while self.plans:
            answer = self.worker.execute(self.plans.pop(0))
            match answer:
                case device.StepDone():
                    bad = {"sampled": answer.sampled + pack_u32([7])} if self.chance.random() < 0.01 else {}
                    self.feed(events.StepDone(msgspec.structs.replace(answer, device_ns=4 * MS, **bad)))
                case device.StepFailed():
                    self.feed(events.StepFailed(answer))
            if self.chance.random() < 0.7:
                break

    def run(self, num_rounds: int) -> str:
        """The whole life; returns what is printed of it."""
        for _ in range(num_rounds):
            self.now += self.chance.randrange(3 * MS)
            self.something_happens()
            self.steps()
        self.digest.update(self.encoder.encode(self.core.load()))
        return f"{self.digest.hexdigest()} {self.num_events} {self.core.load().steps}"


def main(arguments: list[str]) -> None:
    """See the module."""
    num_rounds = int(arguments[0])
    if len(arguments) == 1:
        core = Core(CONFIG, b"key", 3)
        print(Life(core, core.handle).run(num_rounds))
        return
    files = Files(Path(arguments[1]))
    recorded = RecordedCore(CONFIG, b"key", 3, files.write, name_key=b"names", with_tokens=arguments[2] == "tokens")
    files.begin(recorded.header("test"))
    every = int(arguments[3]) if len(arguments) > 3 else num_rounds
    life = Life(recorded.core, recorded.handle, int(arguments[4]) if len(arguments) > 4 else 5)
    for done in range(0, num_rounds, every):
        if done:
            files.begin(recorded.header("test"))
        printed = life.run(every)
    files.close()
    print(printed)


class Files:
    """The recording, in one file or several."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._file: BinaryIO | None = None

    def begin(self, header: bytes) -> None:
        """Another file."""
        self.close()
        name = self._path if self._count == 0 else self._path.with_name(f"{self._path.name}.{self._count}")
        self._count += 1
        self._file = name.open("wb")
        self.write(header)

    def write(self, frame: bytes) -> None:
        """Where a core's recording goes."""
        assert self._file is not None
        self._file.write(frame)

    def close(self) -> None:
        """Ends the last file."""
        if self._file is not None:
            self._file.close()


def random_submit(chance: random.Random, handle: int) -> front.Submit:
    """A request of a few tenants and prefixes."""
    token = chance.choice([0, 1, 2, 5000]) if chance.random() < 0.05 else chance.randrange(3)
    prompt = [token] * chance.randrange(12) + [chance.randrange(1000) for _ in range(1 + handle % 9)]
    attempt = 1
    emitted: tuple[bytes, ...] = ()
    if chance.random() < 0.1:
        attempt, emitted = 2, (pack_u32([chance.choice([2, 5, 77]) for _ in range(chance.randrange(3))]),)
    return front.Submit(
        handle=handle,
        tenant=f"t{chance.randrange(4)}",
        request_id=f"r{chance.randrange(40)}",
        digest=bytes(16),
        prompt=pack_u32(prompt),
        sampling=SamplingParams(
            seed=chance.randrange(9),
            ignore_eos=chance.random() < 0.5,
            stop_token_ids=chance.choice([(), (5,)]),
            logit_bias=((7, 1.0),),
            prompt_logprobs=chance.choice([None, None, 1]),
        ),
        n=chance.choice([1, 1, 1, 3]) if attempt == 1 else 1,
        max_tokens=chance.randrange(1, 40),
        priority=chance.randrange(-2, 3),
        deadline_in_ns=chance.choice([None, 80 * MS]),
        detach_grace_ns=chance.choice([0, 30 * MS]),
        cache_salt=chance.choice(["", "", "SECRET-salt"]),
        gateway_state=b"SECRET stop string",
        attempt=attempt,
        emitted=emitted,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
