"""KV blocks: prefix sharing, copy-on-write, preemption, and what each costs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import unpack_u32
from scheduler_svc.core import events
from scheduler_svc.core.blocks import BlockPool, OutOfBlocks

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

SEEDED = SamplingParams(seed=5, ignore_eos=True)


# ---- the pool alone ----


def test_the_least_recently_used_cached_block_is_forgotten_first() -> None:
    pool = BlockPool(3)
    blocks = list(pool.take_many(3))
    for block in blocks:
        pool.index(block, bytes([block]))
    pool.release([blocks[1], blocks[0], blocks[2]])
    pool.share(blocks[1])
    pool.release([blocks[1]])
    assert pool.take() == blocks[0]
    assert pool.find(bytes([blocks[0]])) is None
    assert pool.find(bytes([blocks[1]])) == blocks[1]
    pool.check({blocks[0]: 1})


def test_a_block_without_content_goes_before_any_cached_one() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.index(first, b"content")
    pool.release([first, second])
    assert (pool.num_cached, pool.num_blank, pool.num_used) == (1, 1, 0)
    assert pool.take() == second
    pool.check({second: 1})


def test_equal_content_is_indexed_once() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    assert pool.index(first, b"same")
    assert not pool.index(second, b"same")
    pool.unindex(second)
    assert pool.find(b"same") == first
    pool.unindex(first)
    assert pool.find(b"same") is None


def test_flushing_forgets_only_what_nobody_uses() -> None:
    pool = BlockPool(2)
    used, unused = pool.take(), pool.take()
    pool.index(used, b"used")
    pool.index(unused, b"unused")
    pool.release([unused])
    pool.flush()
    assert pool.find(b"used") == used
    assert pool.find(b"unused") is None
    pool.check({used: 1})


def test_taking_more_than_there_is_raises() -> None:
    with pytest.raises(OutOfBlocks):
        BlockPool(1).take_many(2)


# ---- prefix sharing ----


def test_a_burst_with_one_system_prompt_computes_it_once(make_world: "Callable[..., World]") -> None:
    world = make_world()
    system = list(range(50, 66))
    prompts = [[*system, 100 + i] for i in range(4)]
    streams = [world.submit(prompt, max_tokens=3) for prompt in prompts]
    world.run()
    assert [stream.finished[0].cached_tokens for stream in streams] == [0, 16, 16, 16]
    assert world.core.load().cached_tokens == 48
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.outputs[0] == world.expected(prompt, 3)


def test_a_second_turn_hits_the_first_ones_output(make_world: "Callable[..., World]") -> None:
    world = make_world()
    first = world.submit([1, 2, 3], max_tokens=14)
    world.run()
    second = world.submit([1, 2, 3] + first.outputs[0] + [9], max_tokens=2)
    world.run()
    # Its last block was given away when its last token was planned, before its tokens were known.
    assert second.finished[0].cached_tokens == 12


def test_the_last_prompt_token_is_always_computed(make_world: "Callable[..., World]") -> None:
    world = make_world()
    prompt = list(range(8))
    world.submit(prompt, max_tokens=1)
    world.run()
    again = world.submit(prompt, max_tokens=5)
    world.run()
    assert again.finished[0].cached_tokens == 4
    assert again.outputs[0] == world.expected(prompt, 5)


@pytest.mark.parametrize(
    ("knobs", "first", "second", "is_hit"),
    [
        ({}, {}, {}, True),
        ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, True),
        ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, False),
        ({}, {"tenant": "a"}, {"tenant": "b"}, False),
        ({"share_prefix_across_tenants": True}, {"tenant": "a"}, {"tenant": "b"}, True),
        ({"share_prefix_across_tenants": True}, {"tenant": "a", "cache_salt": "x"}, {"tenant": "b"}, False),
        ({"enable_prefix_caching": False}, {}, {}, False),
        ({}, {}, {"sampling": SamplingParams(prompt_logprobs=1)}, False),
    ],
)
def test_who_may_hit_whose_blocks(
    make_world: "Callable[..., World]",
    knobs: dict[str, bool],
    first: dict[str, Any],
    second: dict[str, Any],
    is_hit: bool,
) -> None:
    world = make_world(**knobs)
    prompt = list(range(20))
    world.submit(prompt, max_tokens=1, **first)
    world.run()
    stream = world.submit(prompt, max_tokens=1, **second)
    world.run()
    assert (stream.finished[0].cached_tokens > 0) == is_hit


def test_a_tenants_name_cannot_be_moved_into_the_salt(make_world: "Callable[..., World]") -> None:
    world = make_world()
    prompt = list(range(20))
    world.submit(prompt, max_tokens=1, tenant="ab", cache_salt="c")
    world.run()
    stream = world.submit(prompt, max_tokens=1, tenant="a", cache_salt="bc")
    world.run()
    assert stream.finished[0].cached_tokens == 0


def test_flushing_the_cache_makes_the_next_prompt_new(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit(list(range(20)), max_tokens=1)
    world.run()
    assert world.core.load().blocks_cached == 5
    world.feed(events.FlushPrefixCache())
    assert world.core.load().blocks_cached == 0
    assert world.core.load().blocks_free == 64
    stream = world.submit(list(range(20)), max_tokens=1)
    world.run()
    assert stream.finished[0].cached_tokens == 0


# ---- choices ----


@pytest.mark.parametrize("prompt_len", [1, 2, 4, 5, 8, 9, 40])
@pytest.mark.parametrize("caching", [False, True])
def test_choices_share_one_prefill(make_world: "Callable[..., World]", prompt_len: int, caching: bool) -> None:
    world = make_world(enable_prefix_caching=caching)
    prompt = list(range(30, 30 + prompt_len))
    stream = world.submit(prompt, n=4, max_tokens=6, sampling=SEEDED)
    world.run()
    for choice in range(4):
        assert stream.outputs[choice] == world.expected(prompt, 6, SEEDED, choice)
    num_prefilled = sum(sum(unpack_u32(plan.chunks)[1::2]) for plan in world.sent_plans)
    assert num_prefilled == prompt_len + 3
    num_copies = sum(len(unpack_u32(plan.copies)) // 2 for plan in world.sent_plans)
    assert num_copies == (3 if (prompt_len - 1) % 4 else 0)


def test_choices_of_one_request_preempt_and_come_back_to_their_siblings_prompt(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world(geometry_changes={"num_blocks": 20})
    prompt = list(range(30, 52))
    stream = world.submit(prompt, n=4, max_tokens=30, sampling=SEEDED)
    world.run()
    assert world.core.load().preemptions > 0
    for choice in range(4):
        assert stream.outputs[choice] == world.expected(prompt, 30, SEEDED, choice)


# ---- preemption ----


def test_the_latest_arrival_gives_way_and_all_get_their_tokens(make_world: "Callable[..., World]") -> None:
    """vllm-ascend#16315; vllm#41951: no two evict each other in turn, and the place of arrival is kept."""
    world = make_world(geometry_changes={"num_blocks": 16})
    prompts = [[60 + i] * 6 for i in range(6)]
    streams = [world.submit(prompt, max_tokens=30) for prompt in prompts]
    world.run()
    preemptions = [stream.finished[0].preemptions for stream in streams]
    print("preemptions by arrival:", preemptions)
    assert preemptions[0] == 0
    assert sum(preemptions) > 0
    assert world.core.load().preemptions == sum(preemptions) <= 12
    ends = [stream.finished[0].total_ns for stream in streams]
    assert ends == sorted(ends)
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.outputs[0] == world.expected(prompt, 30)


def test_every_step_advances_the_oldest(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 12})
    streams = [world.submit([70 + i] * 9, max_tokens=35) for i in range(5)]
    world.tick()
    while not all(stream.is_over for stream in streams):
        oldest = next(stream for stream in streams if not stream.is_over)
        before = len(oldest.outputs[0])
        world.step()
        assert oldest.is_over or len(oldest.outputs[0]) >= before + (before > 0)


def test_the_watermark_keeps_blocks_free_for_riders(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 20}, watermark_ppm=300_000)
    world.submit([1] * 20, max_tokens=20)
    world.submit([2] * 37, max_tokens=2)
    world.submit([3] * 37, max_tokens=2)
    world.tick()
    assert world.core.load().running == 1
    assert world.core.load().waiting == 2


# ---- who may pass a candidate that memory has no room for ----


def test_smaller_requests_pass_one_that_does_not_fit_for_a_bounded_time(make_world: "Callable[..., World]") -> None:
    """vllm#31731: a large request at the head does not block small ones, and is not starved by them."""
    world = make_world(geometry_changes={"num_blocks": 20}, max_head_bypass_ns=5_000_000)
    world.submit([1] * 30, max_tokens=30)
    world.tick()
    large = world.submit([2] * 60, max_tokens=4)
    small = world.submit([3] * 4, max_tokens=2)
    for _ in range(4):
        world.step()
    assert small.is_over
    assert not large.outputs[0]
    world.wait(6_000_000)
    late = world.submit([4] * 4, max_tokens=2)
    for _ in range(5):
        world.step()
    assert not late.outputs[0]
    world.run()
    assert large.is_over
    assert late.is_over
    assert late.finished[0].queue_ns > large.finished[0].queue_ns - 10_000_000
