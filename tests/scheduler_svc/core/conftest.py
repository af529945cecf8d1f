"""A small world around the real core: a device that checks plans, and gateways that check streams."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from chairlift.ipc import device, front
from chairlift.ipc.common import CancelOutcome, FinishReason, SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32, unpack_u64
from scheduler_svc.core import events, invariants
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect, Emit, SendPlan, WakeAt
from scheduler_svc.sim.paged_device import PagedDevice, expected_output

MS = 1_000_000
S = 1000 * MS
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def geometry(**changes: Any) -> device.Geometry:
    """A small device."""
    fields: dict[str, Any] = {
        "model": "tiny",
        "fingerprint": "f",
        "vocab_size": 1000,
        "max_model_len": 256,
        "eos_token_ids": (2,),
        "block_size": 4,
        "num_blocks": 64,
        "num_host_blocks": 0,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "kv_bytes_per_token": 4,
        "dtype": "float32",
    }
    return device.Geometry(**{**fields, **changes})


class Stream:
    """One attachment as its gateway sees it; fails on a gap, a repeat, or anything after an end."""

    def __init__(self, n: int, outputs: list[list[int]] | None = None) -> None:
        self.n = n
        self.outputs: list[list[int]] = outputs or [[] for _ in range(n)]
        self.accepted: front.Accepted | None = None
        self.attached: front.Attached | None = None
        self.refused: front.Refused | None = None
        self.is_superseded = False
        self.finished: dict[int, front.Finished] = {}
        self.logprobs: list[list[front.DeltaLogprobs]] = [[] for _ in range(n)]
        self.prompt_logprobs: list[front.DeltaPromptLogprobs] = []

    @property
    def is_over(self) -> bool:
        """Nothing more may come."""
        return self.refused is not None or self.is_superseded or len(self.finished) == self.n

    @property
    def reason(self) -> FinishReason:
        """How the only choice ended."""
        return FinishReason(self.finished[0].reason)

    def open(self) -> None:
        assert self.accepted is not None or self.attached is not None, "output before Accepted"
        assert not self.is_over, "output after the end"

    def take_attached(self, message: front.Attached) -> None:
        assert self.attached is None
        assert self.accepted is None
        self.attached = message
        self.n = message.n
        self.outputs = [list(unpack_u32(packed)) for packed in message.outputs]
        self.logprobs = [list(entries) for entries in message.output_logprobs] or [[] for _ in range(self.n)]
        self.prompt_logprobs = list(message.prompt_logprobs)

    def take_tokens(self, choice: int, offset: int, tokens: list[int]) -> None:
        self.open()
        assert choice not in self.finished, "tokens after Finished"
        assert offset == len(self.outputs[choice]), f"offset {offset} after {len(self.outputs[choice])} tokens"
        self.outputs[choice] += tokens

    def take_finished(self, choice: int, message: front.Finished) -> None:
        self.open()
        assert choice not in self.finished, "two ends"
        assert message.num_tokens <= len(self.outputs[choice])
        self.finished[choice] = message
        del self.outputs[choice][message.num_tokens :]


class World:
    """Drives one core. Time moves only when a test says so, or by 1 ms a step."""

    def __init__(self, config: SchedulingConfig | None = None, device_geometry: device.Geometry | None = None) -> None:
        self.geometry = device_geometry or geometry()
        self.core = Core(config or SchedulingConfig(watermark_ppm=0), b"key", 7)
        self.now = 1000 * S
        self.device: PagedDevice | None = None
        self.worker_epoch = 0
        self.plans: deque[device.Plan] = deque()
        self.sent_plans: list[device.Plan] = []
        self.streams: dict[tuple[int, int], Stream] = {}
        self.replies: list[Any] = []
        self.effects: list[Effect] = []
        self.wake_at: int | None = None
        self._next_handle = 0
        self.is_checking = True

    # ---- events ----

    def feed(self, event: events.Event) -> list[Effect]:
        """One event; its effects reach device and gateways."""
        effects = self.core.handle(event, self.now)
        for effect in effects:
            match effect:
                case SendPlan(plan):
                    self.plans.append(plan)
                    self.sent_plans.append(plan)
                case Emit(gateway, message):
                    self._deliver(gateway, message)
                case WakeAt(at_ns):
                    self.wake_at = at_ns
        self.effects += effects
        if self.is_checking:
            invariants.check(self.core, self.now)
            if isinstance(event, events.Tick):
                invariants.check_progress(self.core)
        return effects

    def tick(self) -> None:
        self.feed(events.Tick())

    def worker_up(self) -> None:
        self.worker_epoch += 1
        self.device = PagedDevice(self.geometry, self.worker_epoch)
        self.plans.clear()
        self.feed(events.WorkerUp(self.worker_epoch, self.geometry))

    def worker_lost(self) -> None:
        self.device = None
        self.plans.clear()
        self.feed(events.WorkerLost(self.worker_epoch))

    def worker_silent(self) -> None:
        """Lost as far as can be known; it lives, and what was on its way to it is gone."""
        self.plans.clear()
        self.feed(events.WorkerLost(self.worker_epoch))

    def worker_heard(self) -> None:
        """The one that was silent greets again, its KV cache as it was."""
        self.feed(events.WorkerUp(self.worker_epoch, self.geometry))

    def submit(self, prompt: list[int], *, gateway: int = 1, request_id: str = "", **fields: Any) -> Stream:
        """A request; greedy and without EOS unless told otherwise."""
        self._next_handle += front.MAX_CHOICES
        handle = self._next_handle
        message = front.Submit(
            handle=handle,
            tenant=fields.pop("tenant", "t"),
            request_id=request_id or f"r{handle // front.MAX_CHOICES}",
            digest=fields.pop("digest", b"d" * 16),
            prompt=pack_u32(prompt),
            sampling=fields.pop("sampling", GREEDY),
            **fields,
        )
        known = [list(unpack_u32(packed)) for packed in message.emitted] or None
        stream = self.streams[(gateway, handle)] = Stream(message.n, known)
        self.feed(events.Submit(gateway, message))
        return stream

    def attach(self, request_id: str, *, gateway: int = 1, tenant: str = "t", **fields: Any) -> Stream:
        self._next_handle += front.MAX_CHOICES
        handle = self._next_handle
        stream = self.streams[(gateway, handle)] = Stream(0)
        self.feed(events.Attach(gateway, front.Attach(handle, tenant, request_id, **fields)))
        return stream

    def handle_of(self, stream: Stream) -> tuple[int, int]:
        return next(key for key, one in self.streams.items() if one is stream)

    def stopped(self, stream: Stream, num_tokens: int, choice: int = 0) -> None:
        gateway, handle = self.handle_of(stream)
        self.feed(events.Stopped(gateway, front.Stopped(handle + choice, num_tokens)))

    def detach(self, stream: Stream) -> None:
        gateway, handle = self.handle_of(stream)
        del self.streams[(gateway, handle)]
        self.feed(events.Detach(gateway, front.Detach(handle)))

    def cancel(self, request_id: str, tenant: str = "t") -> CancelOutcome:
        self.feed(events.Cancel(1, front.Cancel(5, tenant, request_id)))
        return CancelOutcome(self.replies[-1].outcome)

    def explain(self, request_id: str) -> front.ExplainReply:
        self.feed(events.Explain(1, front.ExplainQuery(6, "t", request_id)))
        reply = self.replies[-1]
        assert isinstance(reply, front.ExplainReply)
        return reply

    def gateway_lost(self, gateway: int) -> None:
        self.streams = {key: stream for key, stream in self.streams.items() if key[0] != gateway}
        self.feed(events.GatewayLost(gateway))

    # ---- time and steps ----

    def wait(self, duration_ns: int) -> None:
        """Time passes; the core is woken exactly when it asked for it."""
        until = self.now + duration_ns
        while self.wake_at is not None and self.wake_at <= until:
            self.now = max(self.now, self.wake_at)
            self.wake_at = None
            self.tick()
        self.now = until

    def execute(self) -> Any:
        """The device takes its oldest plan; its answer, not yet handed in."""
        assert self.device is not None
        return self.device.execute(self.plans.popleft())

    def hand_in(self, answer: Any) -> None:
        match answer:
            case device.StepDone():
                self.feed(events.StepDone(answer))
            case device.StepFailed():
                self.feed(events.StepFailed(answer))
            case device.NeedSnapshot():
                self.feed(events.SnapshotNeeded(answer))

    def step(self) -> None:
        """One step of the device, and the planning after it."""
        if not self.plans:
            self.tick()
        assert self.plans, "nothing to compute"
        answer = self.execute()
        self.now += MS
        self.hand_in(answer)
        self.tick()

    def run(self, max_steps: int = 2000) -> None:
        """Steps until nothing is left to compute."""
        self.tick()
        for _ in range(max_steps):
            if not self.plans:
                return
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps")

    # ---- gateways ----

    def _deliver(self, gateway: int, message: front.ToGateway) -> None:
        match message:
            case front.Deltas():
                self._deliver_deltas(gateway, message)
            case front.Accepted():
                stream = self.streams[(gateway, message.handle)]
                assert stream.accepted is None
                stream.accepted = message
            case front.Attached():
                self.streams[(gateway, message.handle)].take_attached(message)
            case front.Refused():
                stream = self.streams[(gateway, message.handle)]
                assert stream.accepted is None
                assert stream.refused is None
                stream.refused = message
            case front.Superseded():
                stream = self.streams[(gateway, message.handle)]
                stream.open()
                stream.is_superseded = True
            case front.Finished():
                stream, choice = self._choice(gateway, message.handle)
                stream.take_finished(choice, message)
                assert message.request_ended == (len(stream.finished) == stream.n)
            case _:
                self.replies.append(message)

    def _choice(self, gateway: int, handle: int) -> tuple[Stream, int]:
        choice = handle % front.MAX_CHOICES
        return self.streams[(gateway, handle - choice)], choice

    def _deliver_deltas(self, gateway: int, message: front.Deltas) -> None:
        handles = unpack_u64(message.handles)
        offsets = unpack_u32(message.offsets)
        tokens = list(unpack_u32(message.tokens))
        counts = list(unpack_u32(message.counts)) or [1] * len(handles)
        assert sum(counts) == len(tokens)
        at = 0
        for handle, offset, count in zip(handles, offsets, counts, strict=True):
            stream, choice = self._choice(gateway, handle)
            stream.take_tokens(choice, offset, tokens[at : at + count])
            at += count
        for entry in message.logprobs:
            stream, choice = self._choice(gateway, entry.handle)
            assert entry.offset == len(stream.logprobs[choice]) == len(stream.outputs[choice]) - 1
            assert unpack_u32(entry.token_ids)[0] == stream.outputs[choice][entry.offset]
            stream.logprobs[choice].append(entry)
        for part in message.prompt_logprobs:
            stream, _ = self._choice(gateway, part.handle)
            stream.prompt_logprobs.append(part)

    def expected(self, prompt: list[int], limit: int, sampling: SamplingParams = GREEDY, choice: int = 0) -> list[int]:
        """The output of an undisturbed run."""
        return expected_output(prompt, sampling, choice, limit, self.geometry)


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Makes a world with a worker that is up. Keywords: of the config; `geometry` changes the device."""

    def make(*, geometry_changes: dict[str, Any] | None = None, **knobs: Any) -> World:
        config = SchedulingConfig(**{"watermark_ppm": 0, **knobs})
        world = World(config, geometry(**(geometry_changes or {})))
        world.worker_up()
        return world

    return make
