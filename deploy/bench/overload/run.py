"""Finds the rate that a replica sustains, and shows what twice and five times as much do to it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from chairlift.client import AsyncClient, RetryPolicy
from chairlift.client.connection import KEEPALIVE_S
from chairlift.runtime.settings import Settings
from deploy.bench.observe.processes import find_descendants, measure_memory
from deploy.bench.overload.load import REFUSAL_LIMIT_S, RateFigures, play
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.progress import Progress
from deploy.launcher.stack import Stack, prepare_stack
from deploy.launcher.supervisor import Supervisor

_CONNECTIONS = 4
_FIRST_RATE, _PRECISION = 2.0, 1.08
_WARM_UP_S = 5.0
"""The cost model has to see some steps before it can refuse by prediction."""
_RECOVERY_S = 5.0
_MEMORY_INTERVAL_S = 1.0
_MEMORY_ROOM = 1.1
GOODPUT_SHARE = 0.9


class OverloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Printed as JSON by ``--json``."""

    sustainable_rate: float
    rates: list[RateFigures]
    """The search, in order."""
    overload: dict[str, RateFigures]
    """At twice and five times the sustainable rate."""
    after: RateFigures
    """At three quarters of it, a few seconds later."""
    memory_bytes: dict[str, int]
    """The most of all processes together while each was looked at; ``before``: in the search."""

    @property
    def complaints(self) -> list[str]:
        """What is not as it should be."""
        peak = max(one.goodput for one in [*self.rates, *self.overload.values()])
        found = []
        for name, one in self.overload.items():
            if one.goodput < GOODPUT_SHARE * peak:
                found.append(f"at {name} goodput is {one.goodput / peak:.0%} of its peak")
            if (one.refusal_p99_s or 0.0) > REFUSAL_LIMIT_S:
                found.append(f"at {name} refusals take {one.refusal_p99_s} s")
            if one.refused_without_retry_time or one.failed:
                found.append(f"at {name} {one.refused_without_retry_time} without retry time, {one.failed} failed")
        if max(self.memory_bytes.values()) > _MEMORY_ROOM * self.memory_bytes["before"]:
            found.append("memory is not flat")
        if not self.after.is_sustained:
            found.append("it does not recover")
        return found


async def run_overload(settings: Settings, window_s: float, seed: int) -> OverloadReport:
    """The whole search and the overload. Raises what the launcher raises."""
    async with _running(settings) as clients:
        await play(clients, _FIRST_RATE, _WARM_UP_S, seed)
        memory: dict[str, int] = {}
        async with _most_memory(memory, "before"):
            rates, sustainable = await _search(clients, window_s, seed)
        overload = {}
        for factor in (2, 5):
            name = f"{factor}x"
            async with _most_memory(memory, name):
                overload[name] = await play(clients, factor * sustainable, window_s, seed + factor)
        await asyncio.sleep(_RECOVERY_S)
        after = await play(clients, 0.75 * sustainable, window_s, seed + 9)
    return OverloadReport(
        sustainable_rate=sustainable, rates=rates, overload=overload, after=after, memory_bytes=memory
    )


async def _search(clients: list[AsyncClient], window_s: float, seed: int) -> tuple[list[RateFigures], float]:
    """Doubles until a rate is not sustained, then narrows."""
    rates, low, high = list[RateFigures](), 0.0, None
    rate = _FIRST_RATE
    while high is None or high / max(low, 0.1) > _PRECISION:
        rates.append(await play(clients, rate, window_s, seed + len(rates) + 100))
        if rates[-1].is_sustained:
            low = rate
        else:
            high = rate
        rate = 2 * rate if high is None else (low + high) / 2
    return rates, low


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[list[AsyncClient]]:
    with prepare_stack(settings) as stack:
        children = tuple(_with_stand_in(child) for child in stack.children)
        supervisor = Supervisor(children, settings.supervisor, Progress(verbose=False))
        try:
            await supervisor.start()
            async with AsyncExitStack() as exits:
                yield [await exits.enter_async_context(_client(stack, number)) for number in range(_CONNECTIONS)]
        finally:
            await supervisor.stop()


def _client(stack: Stack, number: int) -> AsyncClient:
    # Channels of equal options would share one connection.
    once = RetryPolicy(max_attempts=1)
    return AsyncClient(str(stack.public), timeout=120.0, retry=once, keepalive_s=KEEPALIVE_S + number / 100)


def _with_stand_in(child: ChildSpec) -> ChildSpec:
    if child.name != "worker":
        return child

    def prepare() -> Launch:
        launch = child.prepare()
        argv = tuple("deploy.bench.overload.worker" if part == "gpu_worker" else part for part in launch.argv)
        return msgspec.structs.replace(launch, argv=argv)

    return msgspec.structs.replace(child, prepare=prepare)


@asynccontextmanager
async def _most_memory(found: dict[str, int], name: str) -> AsyncIterator[None]:
    """While it lasts, notes in `found` the most bytes that the processes had."""

    async def sample() -> None:
        while True:
            found[name] = max(found.get(name, 0), await asyncio.to_thread(_memory))
            await asyncio.sleep(_MEMORY_INTERVAL_S)

    sampling = asyncio.create_task(sample())
    try:
        yield
        found[name] = max(found.get(name, 0), await asyncio.to_thread(_memory))
    finally:
        sampling.cancel()


def _memory() -> int:
    memory = measure_memory(find_descendants(os.getpid()))
    return 0 if memory is None else memory.bytes


def render(report: OverloadReport) -> str:
    """For people, with a line feed at its end."""
    lines = [f"sustainable: {report.sustainable_rate:.1f} requests a second", ""]
    lines.append(f"{'rate/s':>8}{'good/s':>8}{'TTFT p99':>10}{'ITL p99':>9}{'refused':>9}{'after ms':>10}{'failed':>8}")
    rows = [*report.rates, *report.overload.values(), report.after]
    for one in rows:
        lines.append(
            f"{one.rate:>8.1f}{one.goodput:>8.2f}{_show(one.ttft_p99_s, 1):>10}{_show(one.itl_p99_s, 1):>9}"
            f"{one.refused:>9}{_show(one.refusal_p99_s, 1000):>10}{one.failed:>8}"
        )
    memory = ", ".join(f"{name} {size >> 20} MiB" for name, size in report.memory_bytes.items())
    return "\n".join([*lines, "", f"memory: {memory}", *(report.complaints or ["all as it should be"])]) + "\n"


def _show(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:.2f}"
