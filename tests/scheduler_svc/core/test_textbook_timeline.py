"""The field's textbook example of continuous batching (Yu et al., OSDI 2022): A, B, C run, D waits for a seat.

Iterations are numbered from 1: the first in which A, B and C ride together.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chairlift.ipc import device
from chairlift.ipc.common import FinishReason, SamplingParams
from chairlift.ipc.tokens import unpack_u32

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MAY_END = SamplingParams(temperature=0.0)


def riders(plan: device.Plan) -> int:
    return len(unpack_u32(plan.decode)) + len(unpack_u32(plan.chunks)) // 2


def boarding_step(world: "World", prompt: list[int]) -> int:
    """The iteration in which the sequence with this prompt first rides."""
    for plan in world.sent_plans:
        for boarded in plan.boarded:
            if list(unpack_u32(boarded.tokens)) == prompt:
                return plan.step
    raise AssertionError("it never boarded")


def prompt_that_ends_at(world: "World", num_tokens: int) -> list[int]:
    """A prompt whose output ends by EOS with its token `num_tokens`."""
    for first in range(3, 900):
        prompt = [first, 7, 7]
        if len(world.expected(prompt, 20, MAY_END)) == num_tokens:
            return prompt
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("overlap", [False, True])
def test_b_ends_by_length_at_2_and_d_boards_at_3(make_world: "Callable[..., World]", overlap: bool) -> None:
    """An end that is known in advance costs nothing: the seat is planned for again before its last token is there."""
    world = make_world(max_num_seqs=3, overlap=overlap)
    a, c = world.submit([1, 1, 1], max_tokens=8), world.submit([3, 3, 3], max_tokens=8)
    b, d = world.submit([5, 5, 5], max_tokens=2), world.submit([4, 4, 4], max_tokens=5)
    world.run()
    assert boarding_step(world, [5, 5, 5]) == 1
    assert boarding_step(world, [4, 4, 4]) == 3
    assert [riders(plan) for plan in world.sent_plans] == [3] * 7 + [2]
    assert world.core.load().discarded_rows == 0
    for stream, prompt, limit in ((a, 1, 8), (b, 5, 2), (c, 3, 8), (d, 4, 5)):
        assert stream.outputs[0] == world.expected([prompt] * 3, limit)


@pytest.mark.parametrize(("overlap", "boards_at", "discarded"), [(False, 3, 0), (True, 4, 1)])
def test_b_ends_by_eos_at_2(make_world: "Callable[..., World]", overlap: bool, boards_at: int, discarded: int) -> None:
    """An end learnt from the token itself costs one discarded row when the next plan is on its way already."""
    world = make_world(max_num_seqs=3, overlap=overlap)
    prompt_b = prompt_that_ends_at(world, 2)
    world.submit([1, 1, 1], max_tokens=8)
    b = world.submit(prompt_b, sampling=MAY_END, max_tokens=20)
    world.submit([3, 3, 3], max_tokens=8)
    world.submit([4, 4, 4], max_tokens=4)
    world.run()
    assert b.reason is FinishReason.EOS
    assert len(b.outputs[0]) == 2
    assert boarding_step(world, [4, 4, 4]) == boards_at
    assert world.core.load().discarded_rows == discarded


@pytest.mark.parametrize("overlap", [False, True])
def test_static_batching_makes_d_wait_for_the_longest(make_world: "Callable[..., World]", overlap: bool) -> None:
    world = make_world(max_num_seqs=3, overlap=overlap, batching="static")
    world.submit([1, 1, 1], max_tokens=8)
    world.submit([5, 5, 5], max_tokens=2)
    world.submit([3, 3, 3], max_tokens=6)
    d = world.submit([4, 4, 4], max_tokens=5)
    world.run()
    world.wait(100_000_000)
    world.run()
    assert boarding_step(world, [4, 4, 4]) == 9
    assert d.outputs[0] == world.expected([4, 4, 4], 5)


def test_a_static_batch_forms_when_full_or_when_it_has_waited(make_world: "Callable[..., World]") -> None:
    world = make_world(batching="static", static_batch_size=2, static_batch_wait_ns=50_000_000)
    first = world.submit([1], max_tokens=3)
    world.run()
    assert not world.sent_plans
    world.wait(49_999_999)
    assert not world.sent_plans
    world.wait(1)
    assert len(world.sent_plans) == 2
    second, third = world.submit([2], max_tokens=3), world.submit([3], max_tokens=3)
    world.run()
    assert first.is_over
    assert second.is_over
    assert third.is_over
    assert boarding_step(world, [2]) == boarding_step(world, [3]) == 4


def test_static_and_continuous_give_the_same_tokens(make_world: "Callable[..., World]") -> None:
    outputs = []
    for batching in ("static", "continuous"):
        world = make_world(batching=batching, max_num_seqs=3)
        streams = [world.submit([i, 9], max_tokens=3 + i % 4, sampling=SamplingParams(seed=i)) for i in range(8)]
        world.run()
        world.wait(200_000_000)
        world.run()
        outputs.append([stream.outputs for stream in streams])
    assert outputs[0] == outputs[1]
