"""Bounds that hold whatever arrives: on passing the head of the queue, on waiting under priority, on idle seats."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.sequence import Sequence

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""The fixture is a function that makes worlds: each example has one of its own."""

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([2, 4, 9, 40, 60]), st.integers(1, 30), st.integers(-2, 2)),
    min_size=5,
    max_size=25,
)
"""Steps before it, prompt length, output length, priority."""


def boarded_and_waiting(world: "World", before: set[int]) -> tuple[list[Sequence], list[Sequence]]:
    rows = world.core.state.batch.rows.values()
    return [one for one in rows if one.request.number not in before], list(world.core.state.queue)


def step_if_busy(world: "World") -> None:
    if not world.plans:
        world.tick()
    if world.plans:
        world.step()


@given(arrivals=ARRIVALS)
@SLOW
def test_a_head_without_room_is_passed_for_its_time_and_no_longer(
    make_world: "Callable[..., World]", arrivals: list[tuple[int, int, int, int]]
) -> None:
    """vllm#31731: smaller ones board before it, for `max_head_bypass_ns` after it was first found blocked."""
    bound = 6 * MS
    world = make_world(geometry_changes={"num_blocks": 20}, max_head_bypass_ns=bound)
    world.is_checking = False
    since: dict[int, int] = {}
    for gap, prompt_len, max_tokens, _ in arrivals:
        world.submit([1 + len(since)] * prompt_len, max_tokens=min(max_tokens, 76 - prompt_len))
        for _ in range(gap + 1):
            before = {one.request.number for one in world.core.state.batch.rows.values()}
            step_if_busy(world)
            boarded, waiting = boarded_and_waiting(world, before)
            for one in waiting:
                overtaken = [other for other in boarded if other.request.place > one.request.place]
                if one.has_run or not overtaken:
                    continue
                first = since.setdefault(one.request.number, world.now)
                assert world.now - first < bound
    world.run()


def test_another_head_for_a_while_does_not_give_the_first_more_to_wait(make_world: "Callable[..., World]") -> None:
    """A larger one of higher priority stands before it, and is cancelled: the time that it was passed counts on."""
    world = make_world(geometry_changes={"num_blocks": 20}, max_head_bypass_ns=10 * MS, policy="priority")
    world.submit([1] * 40, max_tokens=30, priority=9)
    world.tick()
    large = world.submit([2] * 60, max_tokens=4)
    for _ in range(7):
        world.step()
    world.submit([3] * 70, max_tokens=4, priority=5, request_id="other")
    for _ in range(2):
        world.step()
    world.cancel("other")
    for _ in range(2):
        world.step()
    late = world.submit([4] * 4, max_tokens=2)
    for _ in range(5):
        world.step()
    assert not late.outputs[0]
    world.run()
    assert large.is_over


@given(arrivals=ARRIVALS)
@SLOW
def test_nobody_boards_before_an_earlier_one_that_has_waited_too_long(
    make_world: "Callable[..., World]", arrivals: list[tuple[int, int, int, int]]
) -> None:
    """What ageing promises: from `max_priority_wait_ns` on, a wait is for earlier arrivals only."""
    max_wait = 12 * MS
    world = make_world(policy="priority", max_num_seqs=2, max_priority_wait_ns=max_wait)
    world.is_checking = False
    for number, (gap, prompt_len, max_tokens, priority) in enumerate(arrivals):
        world.submit([number] * prompt_len, max_tokens=max_tokens, priority=priority)
        for _ in range(gap + 1):
            before = {one.request.number for one in world.core.state.batch.rows.values()}
            step_if_busy(world)
            boarded, waiting = boarded_and_waiting(world, before)
            # One that had a seat may still be held by a plan in flight.
            aged = [one for one in waiting if world.now - one.request.arrival_ns >= max_wait and not one.has_run]
            for one in aged:
                assert all(other.request.place < one.request.place for other in boarded)
    world.run()


@given(arrivals=ARRIVALS, policy=st.sampled_from(["fcfs", "priority", "fair", "slo"]))
@SLOW
def test_no_seat_stays_empty_while_somebody_could_take_it(
    make_world: "Callable[..., World]", arrivals: list[tuple[int, int, int, int]], policy: str
) -> None:
    """Work conservation: with seats, blocks and tokens left over, a plan leaves nobody waiting."""
    world = make_world(policy=policy, max_num_seqs=3)
    world.is_checking = False
    state = world.core.state
    for number, (gap, prompt_len, max_tokens, priority) in enumerate(arrivals):
        world.submit([number] * prompt_len, max_tokens=max_tokens, priority=priority, tenant="ab"[number % 2])
        for _ in range(gap + 1):
            step_if_busy(world)
            if not state.in_flight or not len(state.queue) or len(state.batch.rows) >= 3:
                continue
            last = state.in_flight[-1]
            used = last.num_decodes + sum(chunk.num_tokens for chunk in last.chunks)
            needed = min(state.num_blocks_for(one.num_known) for one in state.queue)
            is_short = needed > state.pool.num_obtainable - len(state.batch.rows) - 1
            is_held = all(state.batch.is_held(one, state.confirmed.step) for one in state.queue)
            assert used == state.max_num_batched_tokens or is_short or is_held
    world.run()
