"""Output oracle: the whole engine gives transformers' greedy tokens, however a request rides.

Each reference is one forward pass of transformers over prompt and output: every token must be the most likely one
given those before it. Where its two best logits are closer than 1e-3, float rounding may decide, and either is right.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chairlift.ipc.common import SamplingParams

NUM_TOKENS = 64
TIE = 1e-3
PROMPT_LENS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 127, 128, 200, 333, 900]


def _prompt(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(1000, 48_000) for _ in range(length)]


PROMPTS = [_prompt(length) for length in PROMPT_LENS]


class Alone:
    """What each prompt gives by itself; computed when first asked for."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._outputs: dict[int, list[int]] = {}

    def __getitem__(self, index: int) -> list[int]:
        if index not in self._outputs:
            handle = self.engine.submit(PROMPTS[index], NUM_TOKENS)
            self.engine.run()
            self._outputs[index] = self.engine.tokens(handle)
        return self._outputs[index]


@pytest.fixture(scope="module")
def alone(smollm2: Any) -> Alone:
    return Alone(smollm2())


def _check(model: Any, prompt: list[int], output: list[int]) -> None:
    assert len(output) == NUM_TOKENS
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    chosen = logits[torch.arange(NUM_TOKENS), torch.tensor(output)]
    assert (best[:, 0] - chosen <= TIE).all()


@pytest.mark.parametrize("index", range(len(PROMPTS)), ids=lambda index: f"{PROMPT_LENS[index]} tokens")
def test_alone_equals_transformers(index: int, alone: Alone, transformers_smollm2: Any) -> None:
    _check(transformers_smollm2, PROMPTS[index], alone[index])


def _run_together(engine: Any) -> list[list[int]]:
    handles = [engine.submit(prompt, NUM_TOKENS) for prompt in PROMPTS]
    engine.run()
    return [engine.tokens(handle) for handle in handles]


WAYS: dict[str, Callable[[Any], Any]] = {
    "a batch of 20": lambda make: make(),
    "chunks of 64": lambda make: make(max_num_batched_tokens=64),
    "static, without overlap": lambda make: make(batching="static", overlap=False),
    "tiny KV cache": lambda make: make(num_blocks=72, enable_prefix_caching=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_they_ride_the_tokens_are_the_same(
    way: str, smollm2: Any, alone: Alone, transformers_smollm2: Any
) -> None:
    engine = WAYS[way](smollm2)
    together = _run_together(engine)
    for index, output in enumerate(together):
        if output != alone[index]:
            _check(transformers_smollm2, PROMPTS[index], output)
    if way == "tiny KV cache":
        preemptions = engine.core.load().preemptions
        print(f"preemptions: {preemptions}")
        assert preemptions > 0
    if way == "chunks of 64":
        assert max(engine.step_sizes) == 64


def test_a_prefix_hit_gives_the_same_tokens(alone: Alone, transformers_smollm2: Any) -> None:
    """All at once, of the engine that has computed each alone before."""
    outputs = [alone[index] for index in range(len(PROMPTS))]
    engine = alone.engine
    handles = [engine.submit(prompt, NUM_TOKENS) for prompt in PROMPTS]
    engine.run()
    cached = [engine.answers[handle].ends[0].cached_tokens for handle in handles]
    assert [count > 0 for count in cached] == [length > 16 for length in PROMPT_LENS]
    for index, handle in enumerate(handles):
        if engine.tokens(handle) != outputs[index]:
            _check(transformers_smollm2, PROMPTS[index], engine.tokens(handle))


def test_choices_share_a_prompt_and_have_their_own_noise(smollm2: Any) -> None:
    """n = 3, seeded: each choice as in a request of its own would be wrong, equal choices would be wrong too."""
    sampling = SamplingParams(temperature=1.0, seed=7, ignore_eos=True)
    engine = smollm2()
    handle = engine.submit(_prompt(40), 12, sampling, n=3)
    engine.run()
    first = [engine.tokens(handle, choice) for choice in range(3)]
    assert len({tuple(tokens) for tokens in first}) == 3
    other = smollm2(max_num_batched_tokens=16)
    again = other.submit(_prompt(40), 12, sampling, n=3)
    other.submit(_prompt(70), 30)
    other.run()
    assert [other.tokens(again, choice) for choice in range(3)] == first
