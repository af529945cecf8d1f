"""Steps that fail, workers that go and come, and results that do not fit: nobody loses a token."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chairlift.ipc import device
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import pack_u32, unpack_u32
from scheduler_svc.core import events

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import Stream, World

MS = 1_000_000
POISON = 999


def six(world: "World") -> "list[tuple[list[int], Stream]]":
    prompts = [[40 + i] * (3 + 2 * i) for i in range(6)]
    return [(prompt, world.submit(prompt, max_tokens=12)) for prompt in prompts]


def all_complete(world: "World", jobs: "list[tuple[list[int], Stream]]") -> None:
    world.run()
    for prompt, stream in jobs:
        assert stream.outputs[0] == world.expected(prompt, 12)
        assert stream.reason is FinishReason.LENGTH
    assert world.core.load().blocks_used == 0


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_may_die_at_any_step(make_world: "Callable[..., World]", after: int, overlap: bool) -> None:
    world = make_world(overlap=overlap)
    jobs = six(world)
    for _ in range(after):
        world.step()
    late = world.execute()
    world.worker_lost()
    load = world.core.load()
    assert (load.running, load.waiting, load.blocks_total) == (0, 6, 0)
    world.worker_up()
    world.hand_in(late)
    all_complete(world, jobs)


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("runs_on", [False, True])
def test_a_worker_that_was_only_out_of_reach_keeps_its_cache(
    make_world: "Callable[..., World]", after: int, overlap: bool, runs_on: bool
) -> None:
    """A false loss by silence. What it still computes from before is stale, and writes where nobody reads."""
    world = make_world(overlap=overlap)
    jobs = [*six(world), ([30] * 40, world.submit([30] * 40, max_tokens=12))]
    for _ in range(after):
        world.step()
    late = world.execute() if runs_on else None
    world.worker_silent()
    load = world.core.load()
    assert (load.running, load.waiting, load.blocks_total) == (0, len(jobs), 0)
    world.worker_heard()
    if late is not None:
        world.hand_in(late)
    world.tick()
    all_complete(world, jobs)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_nothing_that_was_confirmed_is_computed_again_unless_told_to(
    make_world: "Callable[..., World]", is_flushed: bool
) -> None:
    world = make_world()
    stream = world.submit([30] * 40, max_tokens=12)
    for _ in range(8):
        world.step()
    block_size, num_confirmed = world.geometry.block_size, 40 + len(stream.outputs[0]) - 1
    world.worker_silent()
    if is_flushed:
        world.feed(events.FlushPrefixCache())
    world.worker_heard()
    world.tick()
    (row,) = next(plan.boarded for plan in reversed(world.sent_plans) if plan.reset)
    assert row.computed == (0 if is_flushed else num_confirmed // block_size * block_size)
    world.run()
    assert stream.outputs[0] == world.expected([30] * 40, 12)


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_may_throw_at_any_time_and_all_go_on(
    make_world: "Callable[..., World]", after: int, overlap: bool
) -> None:
    world = make_world(overlap=overlap)
    jobs = six(world)
    for _ in range(after):
        world.step()
    assert world.device is not None
    world.device.fail_steps = 1
    all_complete(world, jobs)
    assert sum(plan.reset for plan in world.sent_plans) == 2


@pytest.mark.parametrize("num_running", [0, 3, 7])
def test_a_poisoned_request_ends_alone(make_world: "Callable[..., World]", num_running: int) -> None:
    """TGI#3050. A newcomer is tested after those that ran before."""
    world = make_world()
    jobs = [([40 + i] * 4, world.submit([40 + i] * 4, max_tokens=12)) for i in range(num_running)]
    for _ in range(3 if jobs else 0):
        world.step()
    assert world.device is not None
    world.device.poison = {POISON}
    poisoned = world.submit([POISON, 1], max_tokens=12)
    world.run()
    assert poisoned.reason is FinishReason.ERROR
    assert poisoned.finished[0].failure_reason == Reason.STEP_FAILED
    all_complete(world, jobs)
    assert world.core.state.counters.failed_steps == 2


def test_several_poisoned_requests_among_many_are_all_found(make_world: "Callable[..., World]") -> None:
    world = make_world()
    assert world.device is not None
    world.device.poison = {POISON}
    jobs = []
    poisoned = []
    for i in range(24):
        if i % 7 == 3:
            poisoned.append(world.submit([POISON, i], max_tokens=12))
        else:
            jobs.append(([i] * 5, world.submit([i] * 5, max_tokens=12)))
    all_complete(world, jobs)
    assert all(stream.reason is FinishReason.ERROR for stream in poisoned)


def test_rows_that_the_worker_names_are_ended_without_a_search(make_world: "Callable[..., World]") -> None:
    world = make_world(overlap=False)
    jobs = six(world)
    for _ in range(3):
        world.step()
    step = world.plans.popleft().step
    world.feed(events.StepFailed(device.StepFailed(1, step, "exception", "", pack_u32([2]))))
    assert jobs[2][1].reason is FinishReason.ERROR
    assert world.device is not None
    del jobs[2]
    all_complete(world, jobs)


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_a_row_that_was_given_back_meanwhile_is_still_known(
    make_world: "Callable[..., World]", max_tokens: int
) -> None:
    """In its last step the culprit has no row any more, and a newcomer may sit in it."""
    world = make_world(overlap=True)
    culprit = world.submit([POISON] * 4, max_tokens=max_tokens)
    jobs = six(world)
    world.tick()
    (row,) = (one.row for one in world.plans[0].boarded if one.tokens == pack_u32([POISON] * 4))
    for _ in range(max_tokens - 1):
        world.step()
    newcomer = world.submit([7] * 4, max_tokens=12)
    world.tick()
    (sequence,) = (
        one
        for request in world.core.state.requests.values()
        for one in request.sequences
        if request.prompt == pack_u32([POISON] * 4)
    )
    assert sequence.row is None
    step = world.plans.popleft().step
    world.feed(events.StepFailed(device.StepFailed(1, step, "exception", "", pack_u32([row]))))
    assert culprit.reason is FinishReason.ERROR
    assert not world.core.state.probation.is_on
    world.plans.clear()
    all_complete(world, [*jobs, ([7] * 4, newcomer)])


def test_a_device_that_is_broken_for_all_ends_everyone_after_a_bounded_search(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world()
    assert world.device is not None
    world.device.fail_steps = 10_000
    jobs = six(world)
    world.run()
    assert all(stream.reason is FinishReason.ERROR for _, stream in jobs)
    assert world.core.state.counters.failed_steps <= 20


def test_a_batch_that_fails_only_as_a_whole_loses_one_rider_at_a_time(make_world: "Callable[..., World]") -> None:
    """Nobody alone is at fault, and every whole batch fails: the latest arrival has to go, not everyone."""
    world = make_world(overlap=False)
    jobs = six(world)
    world.tick()
    for _ in range(400):
        if not world.plans:
            break
        plan = world.plans[0]
        is_whole = len(unpack_u32(plan.decode)) + len(unpack_u32(plan.chunks)) // 2 > 5
        assert world.device is not None
        world.device.fail_steps = int(is_whole)
        world.step()
    ends = [stream.reason for _, stream in jobs]
    assert FinishReason.ERROR not in ends[:5]


@pytest.mark.parametrize(
    "changes",
    [
        {"sampled": b""},
        {"sampled": b"abc"},
        {"sampled": pack_u32([1, 2, 3, 4, 5, 6, 7])},
        {"sampled": pack_u32([1, 2, 3, 4, 5, 1000])},
        {"ends": pack_u32([0])},
        {"ends": pack_u32([6, 1])},
        {"ends": pack_u32([0, 3])},
        {"ends": b"x"},
        {"logprobs": (device.RowLogprobs(6, bytes(4), bytes(4)),)},
        {"logprobs": (device.RowLogprobs(0, b"", b""),)},
        {"logprobs": (device.RowLogprobs(0, bytes(4), bytes(8)),)},
        {"prompt_logprobs": (device.PromptLogprobs(0, 1, 1, bytes(4), bytes(4)),)},
    ],
)
def test_a_result_that_does_not_fit_is_a_failed_step(
    make_world: "Callable[..., World]", changes: dict[str, Any]
) -> None:
    world = make_world()
    jobs = six(world)
    for _ in range(6):
        world.step()
    answer = world.execute()
    assert len(answer.sampled) == 24
    world.hand_in(msgspec.structs.replace(answer, **changes))
    assert world.core.state.counters.failed_steps == 1
    world.plans.clear()
    all_complete(world, jobs)


def test_stale_results_are_counted_and_dropped(make_world: "Callable[..., World]") -> None:
    """vllm#47900: results carry epoch and step."""
    world = make_world()
    jobs = six(world)
    world.step()
    answer = world.execute()
    for stale in (
        msgspec.structs.replace(answer, step=answer.step - 1),
        msgspec.structs.replace(answer, step=answer.step + 1),
        msgspec.structs.replace(answer, worker_epoch=9),
    ):
        world.hand_in(stale)
    world.feed(events.StepFailed(device.StepFailed(9, answer.step, "exception", "")))
    world.feed(events.StepFailed(device.StepFailed(1, answer.step + 9, "exception", "")))
    world.feed(events.SnapshotNeeded(device.NeedSnapshot(9, 1)))
    world.feed(events.WorkerLost(9))
    assert world.core.state.counters.stale_results == 6
    world.hand_in(answer)
    world.hand_in(answer)
    assert world.core.state.counters.stale_results == 7
    world.tick()
    all_complete(world, jobs)


def test_a_lost_plan_leads_to_a_snapshot(make_world: "Callable[..., World]") -> None:
    world = make_world()
    jobs = six(world)
    for _ in range(4):
        world.step()
    world.plans.popleft()
    world.step()
    assert world.sent_plans[-1].reset or world.sent_plans[-2].reset
    all_complete(world, jobs)


# ---- no worker ----


def test_requests_wait_for_a_worker_for_its_grace_and_no_longer(make_world: "Callable[..., World]") -> None:
    world = make_world(worker_restart_grace_ns=100 * MS)
    running = world.submit([1], max_tokens=50)
    world.step()
    world.worker_lost()
    assert world.core.is_ready
    queued = world.submit([2], max_tokens=50)
    assert queued.accepted is not None
    world.wait(100 * MS - 1)
    assert not running.is_over
    world.wait(1)
    for stream in (running, queued):
        assert stream.reason is FinishReason.ERROR
        assert stream.finished[0].failure_reason == Reason.NO_WORKER
        assert stream.finished[0].retry_after_ns
    assert not world.core.is_ready
    refused = world.submit([3])
    assert refused.refused is not None
    assert refused.refused.reason == Reason.NO_WORKER
    world.worker_up()
    assert world.core.is_ready


def test_before_the_first_worker_nothing_is_let_in(make_world: "Callable[..., World]") -> None:
    world = make_world()
    fresh = type(world)()
    assert not fresh.core.is_ready
    assert fresh.core.model is None
    stream = fresh.submit([1])
    assert stream.refused is not None
    assert stream.refused.reason == Reason.NO_WORKER
    fresh.tick()


def test_a_successor_that_holds_less_ends_what_can_never_fit(make_world: "Callable[..., World]") -> None:
    world = make_world()
    large = world.submit([1] * 100, max_tokens=50)
    small = world.submit([2] * 5, max_tokens=9)
    for _ in range(6):
        world.step()
    world.worker_lost()
    world.geometry = msgspec.structs.replace(world.geometry, num_blocks=20, block_size=8, max_model_len=140)
    world.worker_up()
    assert large.reason is FinishReason.ERROR
    assert large.finished[0].failure_reason == Reason.CONTEXT_LENGTH_EXCEEDED
    world.run()
    assert small.outputs[0] == world.expected([2] * 5, 9)


def test_a_worker_that_greets_anew_without_a_loss_is_another_one(make_world: "Callable[..., World]") -> None:
    world = make_world()
    jobs = six(world)
    for _ in range(3):
        world.step()
    world.worker_up()
    all_complete(world, jobs)
    world.feed(events.WorkerUp(world.worker_epoch, world.geometry))
