"""Blocks that go to the host pool and come back: what they hold is what they held, whatever else the plan does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chairlift.ipc.device import StepFailed
from chairlift.ipc.tokens import pack_u32
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.host_pool import choose_num_host_blocks
from gpu_worker.kv_cache import KvGeometry

Tokens = Callable[[int, int], list[int]]


def _pairs(one: list[int], other: list[int]) -> bytes:
    return pack_u32([item for pair in zip(one, other, strict=True) for item in pair])


def _swap_out(planner: Any, row: int, host_blocks: list[int]) -> tuple[Any, bytes]:
    """The row leaves; its sequence, and the plan's column."""
    sequence = planner.leave(row)
    planner.free += sequence.blocks
    return sequence, _pairs(sequence.blocks, host_blocks[: len(sequence.blocks)])


def _swap_in(planner: Any, sequence: Any, row: int, host_blocks: list[int]) -> bytes:
    """The sequence boards with blocks of its own again; the plan's column."""
    blocks = [planner.free.pop() for _ in sequence.blocks]
    planner.board(row, sequence.tokens, prompt_len=sequence.prompt_len, computed=sequence.computed, blocks=list(blocks))
    return _pairs(host_blocks[: len(blocks)], blocks)


def _poison_free(planner: Any) -> None:
    planner.runner._cache.poison(torch.tensor(planner.free))


def test_a_sequence_goes_on_as_if_it_had_never_given_way(
    new_planner: Any, greedy_reference: Any, tokens_of: Tokens
) -> None:
    """The plan that swaps it out gives its blocks to another, who writes to them in the same step."""
    planner = new_planner()
    prompts = [tokens_of(13, 1), tokens_of(21, 2), tokens_of(17, 3)]
    planner.board(0, prompts[0])
    planner.board(1, prompts[1])
    planner.generate(5)
    host = [4, 0, 3]
    sequence, column = _swap_out(planner, 0, host)
    planner.board(3, prompts[2])
    planner.run({1: 1, 3: 17}, swap_out=column)
    assert set(sequence.blocks) & set(planner.sequences[3].blocks), "its blocks are in use again"
    for _ in range(6):
        planner.run({1: 1, 3: 1})
    _poison_free(planner)
    column = _swap_in(planner, sequence, 5, host)
    planner.run({1: 1, 3: 1, 5: 1}, swap_in=column)
    for _ in range(12):
        planner.run({1: 1, 3: 1, 5: 1})
    for row, prompt in ((5, prompts[0]), (1, prompts[1]), (3, prompts[2])):
        outputs = planner.outputs(row)
        assert outputs == greedy_reference("qwen2", prompt, len(outputs))


def test_two_change_places_in_one_plan(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """One comes back into the very blocks that the other leaves, and each is there twice."""
    planner = new_planner()
    prompts = [tokens_of(9, 1), tokens_of(10, 2)]
    planner.board(0, prompts[0])
    planner.board(1, prompts[1])
    planner.generate(3)
    outside, column = _swap_out(planner, 0, [0, 1])
    planner.run({1: 1}, swap_out=column)
    _poison_free(planner)
    for turn in range(4):
        away, back = ([3, 4, 5], [0, 1, 2]) if turn % 2 == 0 else ([0, 1, 2], [3, 4, 5])
        leaving, out = _swap_out(planner, 1, away)
        column = _swap_in(planner, outside, 1, back)
        assert set(leaving.blocks) & set(planner.sequences[1].blocks)
        planner.run({1: 1}, swap_out=out, swap_in=column)
        planner.run({1: 1})
        outputs = planner.outputs(1)
        assert outputs == greedy_reference("qwen2", prompts[turn % 2], len(outputs))
        outside = leaving


def test_out_then_copies_then_in(new_planner: Any) -> None:
    """Each of the three sees what the one before it left."""
    planner = new_planner()
    cache = planner.runner._cache
    for block in range(4):
        cache.block(block).fill_(block)
    planner.run({}, swap_out=_pairs([0, 1], [5, 2]), copies=pack_u32([2, 0]), swap_in=_pairs([5], [2]))
    assert [cache.block(block).unique().tolist() for block in range(4)] == [[2], [1], [0], [3]]
    planner.run({}, swap_out=_pairs([3], [5]), swap_in=_pairs([5, 2], [1, 0]))
    assert [cache.block(block).unique().tolist() for block in range(4)] == [[1], [3], [0], [3]]


def test_the_pool_outlives_a_failed_step_and_a_reset(
    new_planner: Any, greedy_reference: Any, tokens_of: Tokens
) -> None:
    planner = new_planner()
    prompt = tokens_of(13, 1)
    planner.board(0, prompt)
    planner.board(1, tokens_of(9, 2))
    planner.generate(3)
    sequence, column = _swap_out(planner, 0, [1, 2])
    planner.run({1: 1}, swap_out=column)
    assert isinstance(planner.runner.execute(planner.plan({1: 1}, decode=pack_u32([7]))), StepFailed)
    planner.run({1: 1}, reset=True)
    _poison_free(planner)
    column = _swap_in(planner, sequence, 0, [1, 2])
    planner.run({0: 1, 1: 1}, swap_in=column)
    planner.run({0: 1, 1: 1})
    assert planner.outputs(0) == greedy_reference("qwen2", prompt, 5)


@pytest.mark.parametrize(
    ("device", "preemption", "stated", "expected"),
    [
        ("cpu", "auto", None, 0),
        ("cpu", "swap", None, 0.1),
        ("cuda", "auto", None, 0.1),
        ("cuda", "auto", 0, 0),
        ("cpu", "auto", 10 << 20, 10 << 20),
    ],
)
def test_the_size_of_the_pool(device: str, preemption: str, stated: int | None, expected: float) -> None:
    geometry = KvGeometry(2, 3, 64, 16, torch.bfloat16)
    found = choose_num_host_blocks(stated, device, preemption, 20 << 30, geometry)
    wanted = int(expected * (20 << 30)) if 0 < expected < 1 else expected
    assert found == wanted // geometry.block_bytes


def test_the_pool_is_bounded() -> None:
    geometry = KvGeometry(2, 3, 64, 16, torch.bfloat16)
    assert choose_num_host_blocks(None, "cuda", "auto", 1 << 40, geometry) == (4 << 30) // geometry.block_bytes
    assert BatchLimits(1, 1, 1, 1, 1, 1).num_host_blocks == 0
