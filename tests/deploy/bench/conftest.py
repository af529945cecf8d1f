"""Virtual time for the load generator, and a client that answers by a script of exact delays."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from deploy.bench.load.client import Call, TargetModel
from deploy.bench.load.record import Outcome, RequestRecord, ServerAccount, digest_tokens
from deploy.bench.simulate import virtual_time
from deploy.bench.simulate.virtual_time import VirtualClock

T = TypeVar("T")


class ScriptedClient:
    """Answers after `ttft_ms` and then each `itl_ms`, `seats` at a time: the others queue, as at a server."""

    def __init__(self, clock: VirtualClock, *, ttft_ms: float, itl_ms: float, seats: int = 1 << 30) -> None:
        self.clock = clock
        self.ttft_ms = ttft_ms
        self.itl_ms = itl_ms
        self.seats = asyncio.Semaphore(seats)
        self.calls: list[tuple[int, Call]] = []

    async def describe(self) -> TargetModel:
        return TargetModel(name="scripted")

    async def stream(self, call: Call, record: RequestRecord) -> tuple[int, ...]:
        self.calls.append((self.clock.now_ns(), call))
        arrived_ns = self.clock.now_ns()
        async with self.seats:
            queue_ms = (self.clock.now_ns() - arrived_ns) / 1e6
            for offset in range(call.output_tokens):
                await asyncio.sleep((self.itl_ms if offset else self.ttft_ms) / 1e3)
                record.take_delta(self.clock.now_ns(), 1)
        record.prompt_tokens = len(call.prompt)
        record.outcome = Outcome.OK
        record.server = ServerAccount(queue_ms=queue_ms)
        output = tuple(range(call.output_tokens))
        record.digest = digest_tokens(output)
        return output

    async def close(self) -> None:
        pass


@pytest.fixture
def run_virtually() -> Callable[[Callable[[], Coroutine[Any, Any, T]]], T]:
    """Runs a coroutine function in an event loop with virtual time."""
    return virtual_time.run_virtually


@pytest.fixture
def virtual_clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def scripted_client() -> type[ScriptedClient]:
    return ScriptedClient
