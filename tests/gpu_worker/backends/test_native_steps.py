"""The usual step in one go gives what its parts give, and leaves rows that ask for more to them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan, StepDone, StepFailed
from chairlift.ipc.tokens import pack_u32
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.runner import Runner

EPOCH, BLOCK_SIZE, NUM_BLOCKS, NUM_STEPS = 7, 16, 24, 40
GREEDY = SamplingParams(temperature=0)
Tokens = Callable[[int, int], list[int]]


@pytest.fixture
def new_runner(twins: Any, load_native: Any) -> Callable[..., Runner]:
    """`in_one_go`: as the worker makes it; else by `forward`, `logits` and `greedy`."""

    def make(*, in_one_go: bool) -> Runner:
        model = load_native(twins("qwen2").source)
        limits = BatchLimits(4, 64, 200, model.config.vocab_size, NUM_BLOCKS, BLOCK_SIZE)
        cache = KvCache(KvGeometry.of(model.config, BLOCK_SIZE, torch.float32), NUM_BLOCKS, torch.device("cpu"))
        cache.poison(torch.arange(NUM_BLOCKS))
        decoder = model.new_decoder(limits)
        decode = decoder.decode_greedily if in_one_go else None
        return Runner(decoder, cache, limits, EPOCH, None, decoder.greedy, decode)

    return make


def _board(runner: Runner, prompts: list[list[int]], sampling: list[SamplingParams]) -> list[bytes]:
    """What the first step of all prompts samples; each row has the blocks for all that comes."""
    rows = []
    for row, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        blocks = pack_u32(range(row * 6, row * 6 + 6))
        rows.append(BoardedRow(row, pack_u32(prompt), len(prompt), 0, blocks, 0, params))
    chunks = pack_u32([number for row, prompt in enumerate(prompts) for number in (row, len(prompt))])
    result = runner.execute(Plan(EPOCH, 1, True, boarded=tuple(rows), chunks=chunks))
    assert isinstance(result, StepDone), result
    return [result.sampled]


def _decode(runner: Runner, num_rows: int) -> list[bytes]:
    sampled = []
    for step in range(2, 2 + NUM_STEPS):
        result = runner.execute(Plan(EPOCH, step, decode=pack_u32(range(num_rows))))
        assert isinstance(result, StepDone), result
        sampled.append(result.sampled + result.ends)
    return sampled


@pytest.mark.parametrize("sampling", [[GREEDY] * 3, [GREEDY, SamplingParams(temperature=0.8, seed=5), GREEDY]])
def test_one_go_and_its_parts_sample_the_same(
    sampling: list[SamplingParams], new_runner: Any, tokens_of: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [tokens_of(9, 1), tokens_of(20, 2), tokens_of(3, 3)]
    parts, whole = new_runner(in_one_go=False), new_runner(in_one_go=True)
    wanted = _board(parts, prompts, sampling) + _decode(parts, 3)
    num_in_one_go = 0
    decode = whole._decode_greedily

    def count(*step: Any) -> Any:
        nonlocal num_in_one_go
        num_in_one_go += 1
        return decode(*step)

    monkeypatch.setattr(whole, "_decode_greedily", count)
    assert _board(whole, prompts, sampling) + _decode(whole, 3) == wanted
    # The first step of decodes is prepared as any other is.
    assert num_in_one_go == (NUM_STEPS - 1 if sampling == [GREEDY] * 3 else 0)


def test_logits_without_a_number_are_found_in_one_go_too(new_runner: Any, tokens_of: Tokens) -> None:
    runner = new_runner(in_one_go=True)
    _board(runner, [tokens_of(9, 1), tokens_of(20, 2)], [GREEDY] * 2)
    assert isinstance(runner.execute(Plan(EPOCH, 2, decode=pack_u32([0, 1]))), StepDone)
    runner._cache.poison(torch.tensor([6]))
    failed = runner.execute(Plan(EPOCH, 3, decode=pack_u32([0, 1])))
    assert isinstance(failed, StepFailed)
    assert failed.rows == pack_u32([1])
