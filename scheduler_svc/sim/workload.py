"""Requests to simulate: when they arrive, how long they are, whose they are. No token in them means anything."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

CONTENT_TOKENS = 512
"""Tokens that one content id stands for, as in Mooncake's traces."""
_KEPT_CONTENTS = 4096


class Arrival(NamedTuple):
    """One request."""

    at_ns: int
    """Since the beginning."""
    prompt_len: int
    output_len: int
    tenant: str = "tenant"
    priority: int = 0
    contents: tuple[int, ...] = ()
    """Equal ids at equal places are equal prompts; empty: like no other prompt."""
    num_choices: int = 1


class PromptMaker:
    """Makes packed u32 prompts of random ids below 2**32, equal where contents are."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._contents: OrderedDict[int, bytes] = OrderedDict()

    def make(self, arrival: Arrival) -> bytes:
        """4 * prompt_len bytes."""
        num_bytes = 4 * arrival.prompt_len
        prompt = b"".join(map(self._content, arrival.contents))[:num_bytes]
        return prompt + self._random.randbytes(num_bytes - len(prompt))

    def _content(self, number: int) -> bytes:
        content = self._contents.get(number)
        if content is None:
            content = random.Random(f"{self._seed}/{number}").randbytes(4 * CONTENT_TOKENS)
            self._contents[number] = content
            if len(self._contents) > _KEPT_CONTENTS:
                self._contents.popitem(last=False)
        else:
            self._contents.move_to_end(number)
        return content


class LengthModel(NamedTuple):
    """Log-normal lengths: `mu` and `sigma` of the logarithm, and bounds."""

    mu: float
    sigma: float
    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        """One length."""
        return min(max(round(chance.lognormvariate(self.mu, self.sigma)), self.low), self.high)


CONVERSATION_PROMPTS = LengthModel(6.6, 0.95, 16, 8000)
CONVERSATION_OUTPUTS = LengthModel(5.1, 0.7, 2, 2000)
"""Close to the Azure conversation trace: means 1,155 and 211."""
HEAVY_PROMPTS = LengthModel(5.5, 1.6, 8, 16_000)
HEAVY_OUTPUTS = LengthModel(4.2, 1.4, 1, 4000)
"""A heavy-tailed mix: most are short, a few are enormous."""


def poisson(
    rate: float,
    count: int,
    seed: int,
    prompts: LengthModel = CONVERSATION_PROMPTS,
    outputs: LengthModel = CONVERSATION_OUTPUTS,
    tenant: str = "tenant",
) -> Iterator[Arrival]:
    """`count` requests that arrive at random, `rate` a second in the mean."""
    chance = random.Random(seed)
    at = 0.0
    for _ in range(count):
        at += chance.expovariate(rate)
        yield Arrival(round(at * 1e9), prompts.draw(chance), outputs.draw(chance), tenant)


def burst(
    rate: float,
    count: int,
    seed: int,
    size: int = 64,
    prompts: LengthModel = CONVERSATION_PROMPTS,
    outputs: LengthModel = CONVERSATION_OUTPUTS,
) -> Iterator[Arrival]:
    """The same mean rate in bursts of `size` at one moment."""
    chance = random.Random(seed)
    at = 0.0
    for number in range(count):
        if number % size == 0:
            at += chance.expovariate(rate / size)
        yield Arrival(round(at * 1e9), prompts.draw(chance), outputs.draw(chance))


def merged(*streams: Iterator[Arrival]) -> Iterator[Arrival]:
    """Several streams as one, by time of arrival."""
    return heapq.merge(*streams, key=lambda arrival: arrival.at_ns)
