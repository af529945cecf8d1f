"""Everything that can happen, at random, against a device that checks every plan and streams that check every offset.

After each event every invariant is checked; at the end of each run every stream must have the tokens of an undisturbed
run, and all blocks must be free.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from chairlift.ipc import device
from chairlift.ipc.common import CancelOutcome, FinishReason, Reason, SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import Stream, World

MS = 1_000_000
POISON = 999
PREFIXES: tuple[list[int], ...] = ([], [11] * 3, [12] * 8, [13] * 9, [14] * 21)
COMPLETE = (FinishReason.LENGTH, FinishReason.CONTEXT_LIMIT, FinishReason.EOS, FinishReason.STOP_TOKEN)


class Job:
    """What was asked for, and everyone who ever listened."""

    def __init__(
        self, request_id: str, prompt: list[int], sampling: SamplingParams, limit: int, n: int, tenant: str
    ) -> None:
        self.tenant = tenant
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.limit = limit
        self.n = n
        self.streams: list[Stream] = []
        self.stopped_at: dict[int, int] = {}
        self.is_cancelled = False


class Lives(RuleBasedStateMachine):
    make_world: "Callable[..., World]"

    @initialize(
        overlap=st.booleans(),
        num_blocks=st.sampled_from([14, 24, 80]),
        caching=st.booleans(),
        chunked=st.booleans(),
        seats=st.integers(1, 6),
        static=st.sampled_from([False, False, True]),
        policy=st.sampled_from(["fcfs", "priority", "fair", "slo"]),
        host_blocks=st.sampled_from([0, 6, 40]),
        tenant_seats=st.sampled_from([None, None, 1, 2]),
    )
    def begin(
        self,
        overlap: bool,
        num_blocks: int,
        caching: bool,
        chunked: bool,
        seats: int,
        static: bool,
        policy: str,
        host_blocks: int,
        tenant_seats: int | None,
    ) -> None:
        self.world = self.make_world(
            geometry_changes={
                "num_blocks": num_blocks,
                "max_model_len": 48,
                "max_num_seqs": 6,
                "num_host_blocks": host_blocks,
            },
            preemption="swap",
            overlap=overlap,
            enable_prefix_caching=caching,
            enable_chunked_prefill=chunked,
            max_num_seqs=seats,
            batching="static" if static else "continuous",
            static_batch_wait_ns=3 * MS,
            max_num_batched_tokens=16,
            worker_restart_grace_ns=10_000 * MS,
            gateway_loss_grace_ns=500 * MS,
            max_ended_requests_kept=5,
            policy=policy,
            max_priority_wait_ns=30 * MS,
            tenant_max_num_seqs=tenant_seats,
            tenants=("heavy: weight=3",),
        )
        self.jobs: list[Job] = []
        self.num_faults = 0
        self.num_deaths = 0

    # ---- requests ----

    @rule(
        prefix=st.sampled_from(PREFIXES),
        own=st.lists(st.integers(20, 23), min_size=1, max_size=6),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        gateway=st.integers(1, 3),
        sampling=st.builds(
            SamplingParams,
            ignore_eos=st.booleans(),
            min_tokens=st.sampled_from([0, 3]),
            stop_token_ids=st.sampled_from([(), (5,)]),
            logprobs=st.sampled_from([None, None, 2]),
            prompt_logprobs=st.sampled_from([None, None, 1]),
            seed=st.integers(0, 3),
        ),
        times=st.fixed_dictionaries(
            {},
            optional={
                "deadline_in_ns": st.integers(1, 60).map(lambda ms: ms * MS),
                "queue_timeout_in_ns": st.integers(1, 20).map(lambda ms: ms * MS),
                "detach_grace_ns": st.sampled_from([0, 5 * MS, 900 * MS]),
                "age_ns": st.integers(0, 10).map(lambda ms: ms * MS),
                "ttft_slo_ns": st.integers(1, 30).map(lambda ms: ms * MS),
            },
        ),
        is_poisoned=st.sampled_from([False] * 9 + [True]),
        owner=st.fixed_dictionaries(
            {"tenant": st.sampled_from(["a", "b", "heavy"]), "priority": st.sampled_from([0, 0, 1, 5, -3])}
        ),
    )
    def submit(
        self,
        prefix: list[int],
        own: list[int],
        max_tokens: int | None,
        n: int,
        gateway: int,
        sampling: SamplingParams,
        times: dict[str, int],
        is_poisoned: bool,
        owner: dict[str, Any],
    ) -> None:
        prompt = prefix + own + [POISON] * is_poisoned
        room = min(48, self.world.geometry.num_blocks * 4 + 1) - len(prompt)
        job = Job(f"job{len(self.jobs)}", prompt, sampling, min(max_tokens or room, room), n, owner["tenant"])
        job.streams.append(
            self.world.submit(
                prompt,
                request_id=job.request_id,
                gateway=gateway,
                sampling=sampling,
                n=n,
                max_tokens=max_tokens,
                **owner,
                **times,
            )
        )
        self.jobs.append(job)

    @rule(data=st.data(), gateway=st.integers(1, 3), again=st.booleans())
    @precondition(lambda self: self.jobs)
    def attach(self, data: st.DataObject, gateway: int, again: bool) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        if again:
            stream = self.world.submit(
                job.prompt,
                request_id=job.request_id,
                gateway=gateway,
                sampling=job.sampling,
                n=job.n,
                digest=b"x" * 16,
                tenant=job.tenant,
            )
            if stream.refused is not None:
                return
            # The id was free again: a request of its own.
            room = min(48, self.world.geometry.num_blocks * 4 + 1) - len(job.prompt)
            job = Job(job.request_id, job.prompt, job.sampling, room, job.n, job.tenant)
            self.jobs.append(job)
        else:
            stream = self.world.attach(job.request_id, gateway=gateway, tenant=job.tenant)
            if stream.attached is None:
                return
            job = next(other for other in reversed(self.jobs) if other.request_id == job.request_id)
        job.streams.append(stream)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        outcome = self.world.cancel(job.request_id, job.tenant)
        assert outcome in CancelOutcome

    @rule(data=st.data())
    @precondition(lambda self: self._open_streams())
    def detach(self, data: st.DataObject) -> None:
        self.world.detach(data.draw(st.sampled_from(self._open_streams())))

    @rule(data=st.data(), back=st.integers(0, 2))
    @precondition(lambda self: self._open_streams())
    def stop(self, data: st.DataObject, back: int) -> None:
        stream = data.draw(st.sampled_from(self._open_streams()))
        choice = data.draw(st.integers(0, stream.n - 1))
        if stream.refused is None and stream.outputs[choice]:
            self.world.stopped(stream, max(len(stream.outputs[choice]) - back, 1), choice)

    # ---- the device ----

    @rule(count=st.integers(1, 6))
    @precondition(lambda self: self.world.device is not None)
    def steps(self, count: int) -> None:
        assert self.world.device is not None
        self.world.device.poison = {POISON}
        self.world.tick()
        for _ in range(count):
            if self.world.plans:
                self.world.step()

    @rule()
    @precondition(lambda self: self.world.device is not None and self.world.plans)
    def result_without_planning(self) -> None:
        self.world.hand_in(self.world.execute())

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule()
    @precondition(lambda self: self.world.device is not None)
    def step_throws(self) -> None:
        assert self.world.device is not None
        self.world.device.fail_steps = 1
        self.num_faults += 1

    @rule()
    @precondition(lambda self: self.world.device is not None and self.world.plans)
    def plan_is_lost(self) -> None:
        lost = self.world.plans.popleft()
        self.world.hand_in(device.NeedSnapshot(self.world.worker_epoch, lost.step))

    @rule(kind=st.sampled_from(["short", "long", "vocabulary", "ends", "torn", "stale", "epoch", "logprobs"]))
    @precondition(lambda self: self.world.device is not None and self.world.plans)
    def bad_result(self, kind: str) -> None:
        answer = self.world.execute()
        if not isinstance(answer, device.StepDone):
            self.world.hand_in(answer)
            return
        changes: dict[str, dict[str, Any]] = {
            "short": {"sampled": answer.sampled[4:]} if answer.sampled else {"sampled": bytes(4)},
            "long": {"sampled": answer.sampled + bytes(4)},
            "vocabulary": {"sampled": pack_u32([1000]) + answer.sampled[4:]},
            "ends": {"ends": pack_u32([7000, 1])},
            "torn": {"sampled": answer.sampled + b"x"},
            "stale": {"step": answer.step + 5},
            "epoch": {"worker_epoch": answer.worker_epoch + 1},
            "logprobs": {"logprobs": (device.RowLogprobs(-1, bytes(4), bytes(4)),)},
        }
        self.world.hand_in(msgspec.structs.replace(answer, **changes[kind]))
        if kind in ("stale", "epoch"):
            self.world.hand_in(answer)
        else:
            self.num_faults += 1

    @rule()
    @precondition(lambda self: self.world.device is not None)
    def worker_dies(self) -> None:
        self.world.worker_lost()
        self.num_deaths += 1

    @rule()
    @precondition(lambda self: self.world.device is not None)
    def worker_is_silent_for_a_while(self) -> None:
        self.world.worker_silent()
        self.world.worker_heard()

    @rule()
    @precondition(lambda self: self.world.device is None)
    def worker_comes(self) -> None:
        self.world.worker_up()

    # ---- gateways, time, knobs ----

    @rule(gateway=st.integers(1, 3))
    def gateway_dies(self, gateway: int) -> None:
        gone = [stream for key, stream in self.world.streams.items() if key[0] == gateway]
        for job in self.jobs:
            job.streams = [stream for stream in job.streams if stream not in gone]
        self.world.gateway_lost(gateway)

    @rule(ms=st.sampled_from([1, 2, 5, 20, 100, 600]))
    def time_passes(self, ms: int) -> None:
        self.world.wait(ms * MS)

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "overlap": st.booleans(),
                "max_num_seqs": st.integers(1, 6),
                "max_num_batched_tokens": st.integers(1, 16),
                "enable_prefix_caching": st.booleans(),
                "enable_chunked_prefill": st.booleans(),
                "long_prefill_token_threshold": st.integers(0, 5),
                "watermark_ppm": st.sampled_from([0, 100_000]),
                "max_head_bypass_ns": st.sampled_from([0, 5 * MS]),
                "batching": st.sampled_from(["static", "continuous"]),
                "policy": st.sampled_from(["fcfs", "priority", "fair", "slo"]),
                "preemption": st.sampled_from(["auto", "swap", "recompute"]),
                "tenant_max_num_seqs": st.sampled_from([None, 1]),
            },
        )
    )
    def change_config(self, changes: dict[str, Any]) -> None:
        config = msgspec.structs.replace(self.world.core.state.config, **changes)
        self.world.feed(events.ConfigChanged(config))

    @rule()
    def flush(self) -> None:
        self.world.feed(events.FlushPrefixCache())

    @rule()
    def drain_and_undrain(self) -> None:
        self.world.feed(events.Drain())
        stream = self.world.submit([1], request_id="while draining", digest=b"y" * 16)
        assert stream.refused is not None
        assert stream.refused.reason in (Reason.DRAINING, Reason.NO_WORKER)
        self.world.feed(events.Drain(undrain=True))

    # ---- the end ----

    def _open_streams(self) -> "list[Stream]":
        listed = list(self.world.streams.values())
        return [one for job in self.jobs for one in job.streams if not one.is_over and one in listed]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        if self.world.device is None:
            self.world.worker_up()
        assert self.world.device is not None
        self.world.device.poison = {POISON}
        self.world.run()
        self.world.wait(1000 * MS)
        self.world.run()
        assert self.world.core.is_idle
        assert self.world.core.load().blocks_used == 0
        for job in self.jobs:
            for stream in job.streams:
                if stream.refused is None:
                    self._check_stream(job, stream)

    def _check_stream(self, job: Job, stream: "Stream") -> None:
        for choice in range(job.n):
            wanted = self.world.expected(job.prompt, job.limit, job.sampling, choice)
            output = stream.outputs[choice]
            assert output == wanted[: len(output)]
            finished = stream.finished.get(choice)
            if finished is None:
                assert stream.is_superseded or stream not in self.world.streams.values()
                continue
            assert finished.num_tokens == len(output)
            if finished.reason in COMPLETE:
                assert output == wanted
            if finished.reason == FinishReason.ERROR and finished.failure_reason != Reason.NO_WORKER:
                # A lone suspect whose step throws is guilty: a second fault, planted meanwhile, looks the same.
                num_faults = self.num_faults + any(POISON in other.prompt for other in self.jobs)
                # Three deaths at one place of a sequence make it the culprit.
                assert POISON in job.prompt or num_faults > 1 or self.num_deaths > 2
            if job.sampling.logprobs is not None:
                assert len(stream.logprobs[choice]) >= len(output)
        if job.sampling.prompt_logprobs is not None and any(one.reason in COMPLETE for one in stream.finished.values()):
            _check_prompt_logprobs(job, stream)


def _check_prompt_logprobs(job: Job, stream: "Stream") -> None:
    assert job.sampling.prompt_logprobs is not None
    width = job.sampling.prompt_logprobs + 1
    at = 1
    for part in stream.prompt_logprobs:
        assert (part.offset, part.width) == (at, width)
        at += len(part.token_ids) // (4 * width)
    assert at == len(job.prompt)


def test_random_lives(make_world: "Callable[..., World]") -> None:
    class Machine(Lives):
        pass

    Machine.make_world = staticmethod(make_world)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
