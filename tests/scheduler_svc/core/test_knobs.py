"""Knobs hold their word, also when they change between two plans."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chairlift.ipc.tokens import unpack_u32
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig

if TYPE_CHECKING:
    from chairlift.ipc import device
    from tests.scheduler_svc.core.conftest import World


def num_tokens(plan: "device.Plan") -> int:
    return len(unpack_u32(plan.decode)) + sum(unpack_u32(plan.chunks)[1::2])


def change(world: "World", **changes: Any) -> None:
    config = msgspec.structs.replace(world.core.state.config, **changes)
    world.feed(events.ConfigChanged(config))


def test_no_step_has_more_tokens_or_rows_than_allowed(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=3, max_num_batched_tokens=7)
    for i in range(8):
        world.submit([i] * (5 * i + 1), max_tokens=6)
    world.run()
    assert max(num_tokens(plan) for plan in world.sent_plans) == 7
    assert max(len(unpack_u32(plan.decode)) + len(unpack_u32(plan.chunks)) // 2 for plan in world.sent_plans) == 3


def test_seats_never_exceed_a_steps_tokens(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=8, max_num_batched_tokens=2)
    streams = [world.submit([i] * 3, max_tokens=5) for i in range(5)]
    world.run()
    assert world.core.limits().max_num_seqs == 2
    assert all(len(stream.outputs[0]) == 5 for stream in streams)


def test_without_chunked_prefill_a_prompt_is_computed_in_one_step(make_world: "Callable[..., World]") -> None:
    world = make_world(enable_chunked_prefill=False)
    for token, length in ((1, 20), (2, 20), (3, 30)):
        world.submit([token] * length, max_tokens=4)
    huge = world.submit([9] * 70, max_tokens=2)
    world.run()
    chunks = [list(unpack_u32(plan.chunks)[1::2]) for plan in world.sent_plans if plan.chunks]
    # The last is more than any step may hold: it has whole steps to itself.
    assert chunks == [[20], [20], [30], [32], [32], [6]]
    assert huge.outputs[0] == world.expected([9] * 70, 2)


def test_lowering_max_num_seqs_lets_riders_finish(make_world: "Callable[..., World]") -> None:
    world = make_world()
    streams = [world.submit([i], max_tokens=8) for i in range(6)]
    world.step()
    change(world, max_num_seqs=2)
    late = world.submit([9], max_tokens=2)
    world.step()
    world.step()
    assert world.core.load().running == 6
    world.run()
    assert world.core.load().preemptions == 0
    assert all(len(stream.outputs[0]) == 8 for stream in streams)
    assert late.is_over


def test_lowering_the_token_budget_below_the_riders_holds_at_once(make_world: "Callable[..., World]") -> None:
    world = make_world()
    prompts = [[i, i] for i in range(6)]
    streams = [world.submit(prompt, max_tokens=8) for prompt in prompts]
    for _ in range(3):
        world.step()
    change(world, max_num_batched_tokens=3)
    seen = len(world.sent_plans)
    world.run()
    assert max(num_tokens(plan) for plan in world.sent_plans[seen:]) <= 3
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.outputs[0] == world.expected(prompt, 8)


def test_overlap_can_be_switched_while_running(make_world: "Callable[..., World]") -> None:
    world = make_world(overlap=False)
    stream = world.submit([1], max_tokens=30)
    world.step()
    assert len(world.plans) == 1
    change(world, overlap=True)
    world.step()
    assert len(world.plans) == 2
    change(world, overlap=False)
    world.run()
    assert stream.outputs[0] == world.expected([1], 30)


def test_prefix_caching_can_be_switched_on_later(make_world: "Callable[..., World]") -> None:
    world = make_world(enable_prefix_caching=False)
    waiting = [world.submit(list(range(20)), max_tokens=9) for _ in range(2)]
    change(world, enable_prefix_caching=True)
    world.run()
    assert [stream.finished[0].cached_tokens for stream in waiting] == [0, 16]


@pytest.mark.parametrize("changes", [{"max_num_seqs": 0}, {"watermark_ppm": -1}, {"policy": "best"}, {"mistyped": 1}])
def test_knobs_out_of_bounds_are_refused_on_conversion(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(changes, SchedulingConfig)
