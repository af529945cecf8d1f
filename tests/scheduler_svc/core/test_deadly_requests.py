"""A request that kills the worker each time is found after three deaths and ends alone; plain kills cost nobody."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import unpack_u32
from scheduler_svc.core.probation import MAX_DEATHS

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import Stream, World

DEADLY = 997


def run_with_deaths(world: "World", at_length: int = 0, max_steps: int = 3000) -> int:
    """Steps until nothing is left; the worker dies at each step that computes a row with the deadly token in it.

    With `at_length`, only once that row holds so many tokens. Returns how often it died.
    """
    deaths = 0
    world.tick()
    for _ in range(max_steps):
        if not world.plans:
            return deaths
        if _kills(world, at_length):
            deaths += 1
            world.worker_lost()
            world.worker_up()
            world.tick()
        else:
            world.step()
    raise AssertionError("not idle")


def _kills(world: "World", at_length: int) -> bool:
    assert world.device is not None
    plan = world.plans[0]
    lengths = {} if plan.reset else dict(world.lengths)  # type: ignore[attr-defined]
    deadly = set() if plan.reset else set(world.deadly_rows)  # type: ignore[attr-defined]
    for row in unpack_u32(plan.left):
        lengths.pop(row, None)
        deadly.discard(row)
    for boarded in plan.boarded:
        lengths[boarded.row] = boarded.computed
        # What is sampled may be that token too, and does no harm.
        prompt = unpack_u32(boarded.tokens)[: boarded.prompt_len]
        (deadly.add if DEADLY in prompt else deadly.discard)(boarded.row)
    chunks = unpack_u32(plan.chunks)
    work = [(row, 1) for row in unpack_u32(plan.decode)] + list(zip(chunks[::2], chunks[1::2], strict=True))
    for row, count in work:
        lengths[row] += count
    world.lengths, world.deadly_rows = lengths, deadly  # type: ignore[attr-defined]
    return any(row in deadly and lengths[row] >= at_length for row, _ in work)


def start(make_world: "Callable[..., World]", **knobs: Any) -> "World":
    world = make_world(**knobs)
    world.lengths, world.deadly_rows = {}, set()  # type: ignore[attr-defined]
    return world


def check_innocent(world: "World", jobs: "list[tuple[list[int], Stream]]", limit: int) -> None:
    for prompt, stream in jobs:
        assert stream.reason is FinishReason.LENGTH
        assert stream.outputs[0] == world.expected(prompt, limit)
    assert world.core.load().blocks_used == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at_length", [0, 9])
def test_a_deadly_request_ends_alone(make_world: "Callable[..., World]", overlap: bool, at_length: int) -> None:
    """At its prompt, or only after some tokens of its own: what it had emitted by then stays."""
    world = start(make_world, overlap=overlap)
    jobs = [([40 + i] * 4, world.submit([40 + i] * 4, max_tokens=16)) for i in range(5)]
    deadly = world.submit([DEADLY, 1, 2], max_tokens=16)
    deaths = run_with_deaths(world, at_length)
    assert deaths == MAX_DEATHS
    assert deadly.reason is FinishReason.ERROR
    assert deadly.finished[0].failure_reason == Reason.STEP_FAILED
    assert deadly.outputs[0] == world.expected([DEADLY, 1, 2], 16)[: len(deadly.outputs[0])]
    assert world.core.state.counters.excused_losses == MAX_DEATHS
    check_innocent(world, jobs, 16)


def test_kills_with_progress_in_between_blame_nobody(make_world: "Callable[..., World]") -> None:
    """Somebody kills the worker again and again: each time all have moved on."""
    world = start(make_world)
    jobs = [([40 + i] * 4, world.submit([40 + i] * 4, max_tokens=40)) for i in range(4)]
    for _ in range(4):
        for _ in range(8):
            world.step()
        world.worker_lost()
        world.worker_up()
        world.tick()
    world.run()
    assert world.core.state.counters.excused_losses == 0
    check_innocent(world, jobs, 40)


def test_two_kills_without_progress_blame_nobody(make_world: "Callable[..., World]") -> None:
    """The suspects run alone, come past the place, and run together again."""
    world = start(make_world)
    jobs = [([40 + i] * 4, world.submit([40 + i] * 4, max_tokens=12)) for i in range(4)]
    for _ in range(2):
        world.step()
        world.worker_lost()
        world.worker_up()
        world.tick()
    assert world.core.state.probation.is_on
    world.run()
    assert not world.core.state.probation.is_on
    check_innocent(world, jobs, 12)


@given(data=st.data())
# The fixture is a function that makes a world of its own each time.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_of_deadly_requests_costs_three_deaths_each(
    make_world: "Callable[..., World]", data: st.DataObject
) -> None:
    """Whatever the batch: every deadly request ends with ERROR, every other one completes, nobody is blamed for it."""
    knobs = data.draw(
        st.fixed_dictionaries(
            {
                "overlap": st.booleans(),
                "enable_prefix_caching": st.booleans(),
                "max_num_batched_tokens": st.sampled_from([6, 16, 64]),
                "max_num_seqs": st.integers(1, 6),
            }
        )
    )
    world = start(make_world, **knobs)
    kinds = data.draw(st.lists(st.sampled_from(["plain", "plain", "plain", "deadly"]), min_size=1, max_size=8))
    at_length = data.draw(st.sampled_from([0, 3, 12]))
    jobs, deadly = [], []
    for number, kind in enumerate(kinds):
        length = data.draw(st.integers(1, 20))
        if kind == "deadly":
            deadly.append(world.submit([*[30 + number] * length, DEADLY], max_tokens=14))
        else:
            prompt = [30 + number] * length
            jobs.append((prompt, world.submit(prompt, max_tokens=14)))
    deaths = run_with_deaths(world, at_length)
    assert deaths <= MAX_DEATHS * len(deadly)
    assert all(stream.reason is FinishReason.ERROR for stream in deadly)
    check_innocent(world, jobs, 14)


def test_a_worker_that_was_out_of_reach_did_not_die(make_world: "Callable[..., World]") -> None:
    """A partition, or a machine that is too busy: the same life comes back, however often, and nobody is to blame."""
    world = start(make_world)
    jobs = [([40 + i] * 20, world.submit([40 + i] * 20, max_tokens=12)) for i in range(3)]
    world.tick()
    for _ in range(5):
        world.worker_lost()
        world.worker_epoch -= 1
        world.worker_up()
        world.tick()
    assert not world.core.state.probation.is_on
    world.run()
    assert world.core.state.counters.excused_losses == 0
    check_innocent(world, jobs, 12)
