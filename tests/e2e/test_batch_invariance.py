"""A request's tokens are the same however it rides: alone, in a batch, in chunks, after preemption.

Unlike the oracle there is no tolerance: on native kernels a row's arithmetic does not depend on its neighbours, and a
server that says `deterministic` promises just that.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from chairlift.ipc.common import SamplingParams
from gpu_worker.backends.native import NativeModel

NUM_TOKENS = 10
PROMPT_LENS = [1, 30, 47, 15, 126]


def _requests() -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(11)
    found = []
    for index, length in enumerate(PROMPT_LENS):
        prompt = [rng.randrange(1000, 48_000) for _ in range(length)]
        ways = [
            SamplingParams(temperature=0.0, ignore_eos=True),
            SamplingParams(temperature=1.0, seed=index, ignore_eos=True),
            SamplingParams(temperature=0.9, top_p=0.95, seed=index, repetition_penalty=1.1, ignore_eos=True),
        ]
        found.append((prompt, ways[index % len(ways)]))
    return found


REQUESTS = _requests()


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engines(request: pytest.FixtureRequest, engines_of: Any, smollm2: Any) -> Any:
    factory = smollm2 if request.param == "float32" else engines_of("bfloat16", "none")
    if not isinstance(factory.model, NativeModel):
        pytest.skip("no native kernels on this machine: the product promises nothing here")
    return factory


def _run(engine: Any) -> list[list[int]]:
    handles = [engine.submit(prompt, NUM_TOKENS, sampling) for prompt, sampling in REQUESTS]
    engine.run()
    return [engine.tokens(handle) for handle in handles]


@pytest.fixture(scope="module")
def alone(engines: Any) -> list[list[int]]:
    engine = engines()
    found = []
    for prompt, sampling in REQUESTS:
        handle = engine.submit(prompt, NUM_TOKENS, sampling)
        engine.run()
        found.append(engine.tokens(handle))
    return found


WAYS: dict[str, Callable[[Any], Any]] = {
    "a batch": lambda make: make(),
    "chunks of 16": lambda make: make(max_num_batched_tokens=16, max_num_seqs=16),
    "without overlap": lambda make: make(overlap=False),
    "preemption": lambda make: make(num_blocks=17, enable_prefix_caching=False, preemption="recompute"),
    "swapping": lambda make: make(num_blocks=17, num_host_blocks=60, enable_prefix_caching=False, preemption="swap"),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_it_rides(way: str, engines: Any, alone: list[list[int]]) -> None:
    engine = WAYS[way](engines)
    assert _run(engine) == alone
    if way in ("preemption", "swapping"):
        preemptions = engine.core.load().preemptions
        print(f"preemptions: {preemptions}, blocks swapped: {engine.num_swapped_blocks}")
        assert preemptions > 0
        assert (engine.num_swapped_blocks > 0) == (way == "swapping")


def test_from_cached_blocks(engines: Any, alone: list[list[int]]) -> None:
    engine = engines()
    _run(engine)
    assert _run(engine) == alone
