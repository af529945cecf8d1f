"""Preemption that keeps what was computed: copies to the host and back, bounded, and void when their plan is."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import unpack_u32
from scheduler_svc.core.cost_model import StepCosts, StepShape
from scheduler_svc.core.host_pool import HostPool, SwapCost

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import Stream, World

SEEDED = SamplingParams(seed=5, ignore_eos=True)


def crowd(world: "World", count: int = 6, max_tokens: int = 30) -> "list[tuple[list[int], Stream]]":
    prompts = [[60 + i] * 6 for i in range(count)]
    return [(prompt, world.submit(prompt, max_tokens=max_tokens)) for prompt in prompts]


def num_prefilled(world: "World") -> int:
    return sum(sum(unpack_u32(plan.chunks)[1::2]) for plan in world.sent_plans)


def check_all(world: "World", jobs: "list[tuple[list[int], Stream]]", max_tokens: int = 30) -> None:
    world.run()
    for prompt, stream in jobs:
        assert stream.outputs[0] == world.expected(prompt, max_tokens)
    assert world.core.state.host_pool.num_free == world.geometry.num_host_blocks


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_who_comes_back_from_the_host_computes_nothing_twice(
    make_world: "Callable[..., World]", overlap: bool, caching: bool
) -> None:
    world = make_world(
        geometry_changes={"num_blocks": 16, "num_host_blocks": 60},
        preemption="swap",
        overlap=overlap,
        enable_prefix_caching=caching,
    )
    jobs = crowd(world)
    check_all(world, jobs)
    swaps = sum(world.explain(f"r{i + 1}").swaps for i in range(6))
    assert swaps == world.core.load().preemptions > 0
    # Each prompt once, and one chunk of one token for each return.
    assert num_prefilled(world) == 6 * 6 + swaps


def test_recompute_stays_recompute(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 60}, preemption="recompute")
    check_all(world, crowd(world))
    assert world.core.load().preemptions > 0
    assert not any(plan.swap_out for plan in world.sent_plans)


def test_a_full_host_pool_means_recompute(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 4}, preemption="swap")
    check_all(world, crowd(world))
    assert max(max(unpack_u32(plan.swap_out)[1::2], default=0) for plan in world.sent_plans) < 4


@pytest.mark.parametrize("after", range(8, 30, 2))
@pytest.mark.parametrize("what", ["step", "worker", "plan"])
def test_copies_of_a_void_plan_are_not_believed(make_world: "Callable[..., World]", after: int, what: str) -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 60}, preemption="swap")
    jobs = crowd(world)
    for _ in range(after):
        world.step()
    assert world.device is not None
    match what:
        case "step":
            world.device.fail_steps = 1
        case "worker":
            world.worker_lost()
            assert world.core.state.host_pool.num_blocks == 0
            world.worker_up()
        case "plan":
            world.plans.popleft()
    check_all(world, jobs)


def test_a_swapped_request_that_is_cancelled_frees_its_host_blocks(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 60}, preemption="swap")
    crowd(world)
    while world.core.state.host_pool.num_free == 60:
        world.step()
    for i in range(6):
        world.cancel(f"r{i + 1}")
    assert world.core.state.host_pool.num_free == 60
    assert world.core.load().blocks_used == 0
    world.run()


def test_choices_swap_too(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 20, "num_host_blocks": 60}, preemption="swap")
    prompt = list(range(30, 52))
    stream = world.submit(prompt, n=4, max_tokens=30, sampling=SEEDED)
    world.run()
    assert any(plan.swap_in for plan in world.sent_plans)
    for choice in range(4):
        assert stream.outputs[choice] == world.expected(prompt, 30, SEEDED, choice)


@pytest.mark.parametrize(("block_ns", "is_swapped"), [(1_000.0, True), (1e12, False)])
def test_auto_takes_what_is_cheaper(make_world: "Callable[..., World]", block_ns: float, is_swapped: bool) -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 60}, preemption="auto")
    world.core.state.cost_model.costs = StepCosts(fixed=1e6, decode_row=1e4, prefill_token=1e5)
    world.core.state.swap_cost.block_ns = block_ns
    check_all(world, crowd(world))
    assert any(plan.swap_out for plan in world.sent_plans) == is_swapped


def test_auto_recomputes_while_nothing_is_known(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 16, "num_host_blocks": 60}, preemption="auto")
    check_all(world, crowd(world))
    assert not any(plan.swap_out for plan in world.sent_plans)


def test_the_cost_of_a_copy_is_learnt() -> None:
    cost = SwapCost(block_bytes=400_000)
    assert cost.block_ns == 40_000
    costs, shape = StepCosts(fixed=1e6, decode_row=0.0, prefill_token=0.0), StepShape(4, 0, 100)
    for _ in range(200):
        cost.observe(costs, shape, 10, 1_000_000 + 10 * 90_000)
    assert cost.block_ns == pytest.approx(90_000, rel=0.02)
    cost.observe(None, shape, 10, 5)


def test_host_blocks_are_taken_and_given_back() -> None:
    pool = HostPool(3)
    taken = pool.take(3)
    assert sorted(taken) == [0, 1, 2]
    with pytest.raises(IndexError):
        pool.take(1)
    pool.release(taken)
    assert pool.num_free == 3
