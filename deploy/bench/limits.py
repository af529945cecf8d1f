"""What the load generator can drive before it is the bottleneck, measured against a server that computes nothing.

The server has a process of its own, and may be slower than the generator: limits are worked out from the CPU time that
the generator spent, as if it had one core to itself.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.summary import LatencySummary, summarize_run
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import TargetError
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadGenerator, LoadPlan
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget
from deploy.bench.load.record import RequestRecord
from deploy.bench.workload.lengths import LengthRange
from deploy.bench.workload.prompts import TokenIds
from deploy.bench.workload.synthetic import RandomWorkload

TTFT_MS = 40.0
ITL_MS = 5.0


class GeneratorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """With one core to itself."""

    messages_per_s: float
    """Deltas: tokens, where a server sends one a delta."""
    tokens_per_s_at_4: float
    """Tokens with four a delta."""
    requests_per_s: float
    """Requests of one token with prompts of 128."""
    us_per_message: float
    us_per_request: float
    ttft_error_ms: float
    itl_error_ms: float
    """Median of what is reported, less what the script says: the way there and back, and lateness of timers."""


async def measure_limits(seconds: float = 3.0) -> GeneratorLimits:
    """Takes about four times `seconds`. Raises TargetError when the stand-in server cannot be started."""
    per_message = await _measure_cost(seconds, output_tokens=256, tokens_per_delta=1)
    per_message_at_4 = await _measure_cost(seconds, output_tokens=1024, tokens_per_delta=4)
    per_request = await _measure_cost(seconds, output_tokens=1, tokens_per_delta=1)
    latencies = await _measure_delays(seconds)
    return GeneratorLimits(
        messages_per_s=round(1 / per_message),
        tokens_per_s_at_4=round(4 / per_message_at_4),
        requests_per_s=round(1 / per_request),
        us_per_message=round(per_message * 1e6, 1),
        us_per_request=round(per_request * 1e6, 1),
        ttft_error_ms=round(latencies["ttft"].percentiles[50.0] - TTFT_MS, 3),
        itl_error_ms=round(latencies["itl"].percentiles[50.0] - ITL_MS, 3),
    )


async def _measure_cost(seconds: float, *, output_tokens: int, tokens_per_delta: int) -> float:
    """CPU seconds of this process for each delta, all that belongs to its request shared out."""
    plan = LoadPlan(concurrency=16, duration_s=seconds)
    cpu_s = time.process_time()
    records = await _play(plan, _workload(output_tokens), f"--tokens-per-delta={tokens_per_delta}")
    return (time.process_time() - cpu_s) / sum(len(record.delta_ns) for record in records)


async def _measure_delays(seconds: float) -> dict[str, LatencySummary]:
    plan = LoadPlan(arrivals=Arrivals(rate=20.0), duration_s=seconds)
    records = await _play(plan, _workload(21), f"--ttft-ms={TTFT_MS}", f"--itl-ms={ITL_MS}")
    return summarize_run(records, Objectives()).latencies


async def _play(plan: LoadPlan, workload: RandomWorkload, *script: str) -> list[RequestRecord]:
    async with _stand_in_process(*script) as address:
        clock = MonotonicClock()
        client = GrpcClient(GrpcTarget(address=address), clock)
        try:
            return await LoadGenerator(client, plan, clock).run(workload.sessions())
        finally:
            await client.close()


def _workload(output_tokens: int) -> RandomWorkload:
    output = LengthRange(output_tokens, output_tokens)
    return RandomWorkload(name="limits", ids=TokenIds(0), prompt=LengthRange(128, 128), output=output)


@asynccontextmanager
async def _stand_in_process(*script: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "deploy.bench.stand_in",
        *script,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise TargetError("the stand-in server did not start; its message is above")
        yield address
    finally:
        process.stdin.close()
        await process.wait()
