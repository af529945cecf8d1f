"""Explain, Finished's timing, log-probabilities and the replica's load: figures that add up exactly."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chairlift.ipc import front
from chairlift.ipc.common import SamplingParams, WaitReason
from scheduler_svc.core import events
from scheduler_svc.core.ledger import WaitClock, WaitLedger

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000


def waits(reply: front.ExplainReply) -> dict[WaitReason, int]:
    assert sum(ns for _, ns in reply.waits) == reply.wait_ns
    return {WaitReason(reason): ns // MS for reason, ns in reply.waits}


def test_one_clock_serves_many_waits() -> None:
    clock = WaitClock(100)
    early, late = WaitLedger(), WaitLedger()
    early.begin(clock, 110)
    clock.turn(WaitReason.SEATS, 120)
    late.begin(clock, 125)
    clock.turn(WaitReason.KV_BLOCKS, 150)
    late.finish(clock, 157)
    assert early.by_reason(clock, 160)[WaitReason.TOKEN_BUDGET] == 10
    assert early.by_reason(clock, 160)[WaitReason.SEATS] == 30
    assert early.by_reason(clock, 160)[WaitReason.KV_BLOCKS] == 10
    assert late.by_reason(clock, 999)[WaitReason.SEATS] == 25
    assert sum(late.by_reason(clock, 999)) == 32
    late.begin(clock, 1000, WaitReason.PREEMPTED)
    late.finish(clock, 1005)
    assert sum(late.by_reason(clock, 2000)) == 37


def test_waiting_for_a_seat_then_riding(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    world.submit([1], request_id="a", max_tokens=10)
    world.tick()
    world.submit([2] * 40, request_id="b", max_tokens=4)
    world.tick()
    for _ in range(5):
        world.step()
    assert waits(world.explain("b")) == {WaitReason.SEATS: 5}
    world.run()
    reply = world.explain("b")
    assert reply.state == "ended"
    # The last plan with the seat taken is the tenth; the next is made when its predecessor has ended.
    assert waits(reply) == {WaitReason.SEATS: 9}
    assert (reply.iterations, reply.prefill_chunks, reply.output_tokens) == (2 + 3, 2, 4)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.preemptions) == (40, 0, 0)
    assert waits(world.explain("a")) == {}
    assert world.explain("a").iterations == 10


def test_waiting_for_the_step_budget(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1] * 100, max_tokens=2)
    world.submit([2] * 4, request_id="b", max_tokens=2)
    world.run()
    assert waits(world.explain("b")) == {WaitReason.TOKEN_BUDGET: 2}


def test_waiting_for_blocks_and_after_preemption(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 12})
    world.submit([1] * 20, request_id="a", max_tokens=20)
    world.submit([2] * 20, request_id="b", max_tokens=20)
    world.submit([3] * 20, request_id="c", max_tokens=20)
    world.run()
    assert waits(world.explain("a")) == {}
    assert WaitReason.PREEMPTED in waits(world.explain("b"))
    assert world.explain("b").preemptions == 1
    assert WaitReason.KV_BLOCKS in waits(world.explain("c"))


def test_waiting_for_a_worker(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1] * 4, request_id="rider", max_tokens=9)
    world.step()
    world.worker_lost()
    world.submit([2] * 4, request_id="new", max_tokens=9)
    world.wait(70 * MS)
    world.worker_up()
    world.run()
    assert waits(world.explain("rider")) == {WaitReason.WORKER_LOST: 70}
    assert waits(world.explain("new")) == {WaitReason.WORKER_LOST: 70}


def test_explain_knows_the_callers_own_requests_only(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1], request_id="a", tenant="other")
    world.feed(events.Explain(1, front.ExplainQuery(3, "t", "a")))
    assert isinstance(world.replies[-1], front.QueryFailed)


def test_finished_tells_the_times_of_its_request(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    world.submit([1], max_tokens=3)
    second = world.submit([2] * 40, max_tokens=4, age_ns=100 * MS, attempt=1)
    third = world.submit([3], max_tokens=1)
    world.run()
    finished = second.finished[0]
    assert finished.queue_ns == 100 * MS
    assert finished.ttft_ns == 102 * MS
    assert finished.total_ns == 105 * MS
    assert third.finished[0].ttft_ns == third.finished[0].total_ns


# ---- log-probabilities ----


@pytest.mark.parametrize("n", [1, 3])
def test_log_probabilities_come_with_their_tokens_and_again_on_attach(
    make_world: "Callable[..., World]", n: int
) -> None:
    world = make_world()
    sampling = SamplingParams(logprobs=2, prompt_logprobs=1, ignore_eos=True)
    stream = world.submit(list(range(50)), request_id="a", n=n, max_tokens=6, sampling=sampling, detach_grace_ns=MS)
    for _ in range(5):
        world.step()
    late = world.attach("a", gateway=2)
    assert late.logprobs[0] == [
        front.DeltaLogprobs(world.handle_of(late)[1], entry.offset, entry.token_ids, entry.logprobs)
        for entry in stream.logprobs[0]
    ]
    world.run()
    for choice in range(n):
        assert [entry.offset for entry in late.logprobs[choice]] == list(range(6))
    described = [(part.offset, len(part.token_ids) // 8) for part in late.prompt_logprobs]
    assert described == [(1, 32), (33, 17)]


def test_prompt_log_probabilities_are_sent_once_though_the_prompt_is_computed_again(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world(long_prefill_token_threshold=8)
    stream = world.submit(list(range(40)), max_tokens=5, sampling=SamplingParams(prompt_logprobs=0, ignore_eos=True))
    for _ in range(3):
        world.step()
    world.worker_lost()
    world.worker_up()
    world.run()
    assert sum(len(part.token_ids) // 4 for part in stream.prompt_logprobs) == 39
    assert len(stream.outputs[0]) == 5


# ---- load ----


def test_the_load_counts_every_outcome(make_world: "Callable[..., World]") -> None:
    """vllm#55634: aborted requests were missing from the counts."""
    world = make_world(max_num_seqs=2)
    world.submit([1] * 9, max_tokens=5)
    world.submit([2] * 9, max_tokens=5, request_id="b")
    world.submit([3] * 9, max_tokens=5)
    world.submit([4] * 9, max_tokens=0)
    world.step()
    load = world.core.load()
    assert (load.running, load.waiting, load.queued_tokens) == (2, 1, 9)
    assert (load.requests_accepted, load.requests_refused, load.requests_ended) == (3, 1, 0)
    assert load.blocks_used == 6
    assert load.blocks_used + load.blocks_free + load.blocks_cached == load.blocks_total == 64
    world.cancel("b")
    world.run()
    load = world.core.load()
    assert (load.running, load.waiting, load.requests_ended, load.blocks_used) == (0, 0, 3, 0)
    assert load.prompt_tokens == 27
    assert load.output_tokens == 11
    assert load.steps == world.core.state.confirmed.step
