"""Requests at the times of a Poisson process, each sent once: what came of them, and what a rate was like."""

import asyncio
import itertools
import time
from collections.abc import Sequence

import msgspec

from chairlift.client import AsyncClient, ChairliftError
from deploy.bench.load.arrivals import Arrivals

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
TTFT_LIMIT_S, ITL_LIMIT_S = 1.0, 0.2
REFUSAL_LIMIT_S = 0.05


class Answer(msgspec.Struct, frozen=True):
    """One request. Times in seconds, from when it was to be sent."""

    ttft_s: float | None = None
    itl_s: float | None = None
    """The longest gap between two deltas."""
    refused_s: float | None = None
    has_retry_time: bool = False
    failed: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was served within both limits."""
        return (
            self.ttft_s is not None
            and not self.failed
            and self.ttft_s <= TTFT_LIMIT_S
            and (self.itl_s or 0.0) <= ITL_LIMIT_S
        )


class RateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a rate was like."""

    rate: float
    requests: int
    goodput: float
    """Requests a second within both limits."""
    ttft_p99_s: float | None
    itl_p99_s: float | None
    """Of the longest gap of each request."""
    refused: int
    refusal_p99_s: float | None
    refused_without_retry_time: int
    failed: int

    @property
    def is_sustained(self) -> bool:
        """Whether everybody was served within the limits."""
        slow = (self.ttft_p99_s or 0.0) > TTFT_LIMIT_S or (self.itl_p99_s or 0.0) > ITL_LIMIT_S
        return not (slow or self.refused or self.failed)


async def play(clients: Sequence[AsyncClient], rate: float, seconds: float, seed: int) -> RateFigures:
    """Sends requests at `rate` for `seconds`, and waits for their ends."""
    loop = asyncio.get_running_loop()
    began, calls = loop.time(), list[asyncio.Task[Answer]]()
    for number, offset in enumerate(Arrivals(rate=rate, seed=seed).offsets()):
        if offset > seconds:
            break
        await asyncio.sleep(max(0.0, began + offset - loop.time()))
        client = clients[number % len(clients)]
        calls.append(asyncio.create_task(_ask(client, seed * 100_000 + number, time.monotonic())))
    return _sum_up(rate, seconds, list(await asyncio.gather(*calls)))


async def _ask(client: AsyncClient, number: int, intended: float) -> Answer:
    prompt = [1000 + (number * 7919 + at * 104_729) % 40_000 for at in range(PROMPT_TOKENS)]
    times: list[float] = []
    generation = client.stream(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    try:
        async with generation:
            async for _ in generation:
                times.append(time.monotonic())
    except ChairliftError as error:
        if generation.accepted is None:
            took_s, has_retry = time.monotonic() - intended, error.retry_delay_s is not None
            return Answer(refused_s=took_s, has_retry_time=has_retry)
        return Answer(failed=error.reason or error.code)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Answer(ttft_s=times[0] - intended, itl_s=max(gaps, default=0.0))


def _sum_up(rate: float, seconds: float, answers: Sequence[Answer]) -> RateFigures:
    refused = [answer for answer in answers if answer.refused_s is not None]
    return RateFigures(
        rate=rate,
        requests=len(answers),
        goodput=sum(answer.is_good for answer in answers) / seconds,
        ttft_p99_s=_p99([answer.ttft_s for answer in answers]),
        itl_p99_s=_p99([answer.itl_s for answer in answers]),
        refused=len(refused),
        refusal_p99_s=_p99([answer.refused_s for answer in refused]),
        refused_without_retry_time=sum(not answer.has_retry_time for answer in refused),
        failed=sum(bool(answer.failed) for answer in answers),
    )


def _p99(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[min(len(known) - 1, int(len(known) * 0.99))] if known else None
