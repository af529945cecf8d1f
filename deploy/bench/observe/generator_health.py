"""Whether the load generator itself was the bottleneck: its CPU use and how late its event loop woke up."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

MAX_CPU_SHARE = 0.7
"""Of one core: the event loop is one thread, and beyond this its queue shows in the latencies."""
MAX_LOOP_LAG_MS = 10.0
_TICK_S = 0.05


class GeneratorHealth(msgspec.Struct, kw_only=True):
    """The generator's own load during a run."""

    cpu_share: float = 0.0
    loop_lag_p99_ms: float = 0.0
    loop_lag_max_ms: float = 0.0

    def warnings(self) -> list[str]:
        """Why the figures may be the generator's rather than the server's."""
        found = []
        if self.cpu_share > MAX_CPU_SHARE:
            found.append(
                f"the load generator used {self.cpu_share:.0%} of a core: it is near its own limit "
                "(`chairlift bench limits`), and latencies may be its own"
            )
        if self.loop_lag_p99_ms > MAX_LOOP_LAG_MS:
            found.append(
                f"the load generator woke up {self.loop_lag_p99_ms:.0f} ms late at p99: it shares its cores with "
                "something busy, and latencies contain that"
            )
        return found


@asynccontextmanager
async def watch_generator() -> AsyncIterator[GeneratorHealth]:
    """Measures this process while the block runs; the figures are there after it."""
    health, lags = GeneratorHealth(), list[float]()
    wall, cpu = time.monotonic(), time.process_time()
    ticker = asyncio.create_task(_tick(lags))
    try:
        yield health
    finally:
        ticker.cancel()
        health.cpu_share = (time.process_time() - cpu) / max(time.monotonic() - wall, 1e-9)
        if lags:
            lags.sort()
            health.loop_lag_p99_ms = lags[int(0.99 * (len(lags) - 1))]
            health.loop_lag_max_ms = lags[-1]


async def _tick(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lags.append((time.monotonic() - due) * 1e3)
