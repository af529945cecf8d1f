"""The figures: tokens a gateway core, streams held open, time from emission to receipt, pace beside frozen clients."""

import asyncio
import statistics
import time
from typing import Any

import grpc.aio

from chairlift.v1 import inference_pb2
from deploy.bench.gateway_front.clients import open_stream
from deploy.bench.gateway_front.rig import Rig, open_rig
from deploy.bench.gateway_front.stand_in import Steps
from deploy.bench.observe.processes import measure_memory

STREAMS = 256
OPEN_STREAMS = 10_000
LIVE, BESIDE = 50, 200
STEP_S = 0.02
_WARM_STEPS = 50
_SETTLE_S = 1.0


def throughput(seconds: float, tokens_each: int, interval_s: float) -> dict[str, Any]:
    """Tokens a CPU second of the gateway's process, at a rate that it can keep, so that no two steps become one."""
    with open_rig() as rig, rig.clients(STREAMS) as clients:
        rig.scheduler.run(Steps(interval_s=interval_s, count=_WARM_STEPS, tokens_each=tokens_each))
        before_s, began = rig.cpu_s(), time.monotonic()
        count = max(1, round(seconds / interval_s))
        rig.scheduler.run(Steps(interval_s=interval_s, count=count, tokens_each=tokens_each))
        used_s, took_s = rig.cpu_s() - before_s, time.monotonic() - began
        rig.scheduler.finish_all()
        seen = clients.result()
    tokens = count * STREAMS * tokens_each
    messages = seen.messages * count / (count + _WARM_STEPS)
    return {
        "streams": STREAMS,
        "tokens_a_step": tokens_each,
        "tokens_a_message": round((count + _WARM_STEPS) * STREAMS * tokens_each / seen.messages, 2),
        "tokens_per_s": round(tokens / took_s),
        "tokens_per_core_s": round(tokens / used_s),
        "messages_per_core_s": round(messages / used_s),
        "cpu_share": round(used_s / took_s, 3),
        "failed": seen.failed,
    }


def open_streams() -> dict[str, Any]:
    """Memory of the gateway's process a stream that is open and has been given tokens."""
    with open_rig() as rig:
        with rig.clients(STREAMS) as first:
            rig.scheduler.run(Steps(interval_s=0.1, count=3))
            rig.scheduler.finish_all()
            first.result()
        before = _memory(rig)
        with rig.clients(OPEN_STREAMS) as clients:
            # Slow steps: what is held is measured, not how fast it is.
            rig.scheduler.run(Steps(interval_s=2.0, count=3))
            time.sleep(_SETTLE_S)
            during = _memory(rig)
            rig.scheduler.finish_all()
            seen = clients.result()
        return {
            "streams": OPEN_STREAMS,
            "failed": seen.failed,
            "tokens_received": seen.messages,
            "kib_per_stream": round((during - before) / OPEN_STREAMS / 1024, 1),
            "rss_mib": round(during / (1 << 20)),
        }


def latency(count: int) -> dict[str, float]:
    """From the scheduler's Emit to the client's receipt, one stream, otherwise idle; ms."""
    with open_rig() as rig:
        times = asyncio.run(_receive(rig, count))
        emitted = rig.scheduler.emitted_at
    delays = sorted((got - sent) * 1e3 for sent, got in zip(emitted, times, strict=True))
    return {"p50_ms": round(statistics.median(delays), 3), "p99_ms": round(delays[int(len(delays) * 0.99)], 3)}


async def _receive(rig: Rig, count: int) -> list[float]:
    async with grpc.aio.insecure_channel(rig.target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=range(1000, 1016)))
        call = open_stream(channel, request.SerializeToString())
        await call.read()
        giving = asyncio.create_task(asyncio.to_thread(rig.scheduler.run, Steps(interval_s=STEP_S, count=count)))
        times = []
        for _ in range(count):
            await call.read()
            times.append(time.monotonic())
        await giving
        call.cancel()
    return times


def back_pressure(seconds: float) -> dict[str, Any]:
    """ITL of 50 live clients beside 200 that read, and beside 200 that are frozen as whole processes; ms."""
    beside_live, _ = _pace(seconds, is_frozen=False)
    beside_frozen, growth = _pace(seconds, is_frozen=True)
    return {
        "beside_live": beside_live,
        "beside_frozen": beside_frozen,
        "p99_ratio": round(beside_frozen["p99_ms"] / beside_live["p99_ms"], 3),
        "memory_growth_mib_beside_frozen": round(growth / (1 << 20), 1),
    }


def _pace(seconds: float, *, is_frozen: bool) -> tuple[dict[str, float], int]:
    with open_rig() as rig, rig.clients(BESIDE) as others, rig.clients(LIVE) as live:
        rig.scheduler.run(Steps(interval_s=STEP_S, count=_WARM_STEPS))
        if is_frozen:
            others.freeze()
        before = _memory(rig)
        rig.scheduler.run(Steps(interval_s=STEP_S, count=round(seconds / STEP_S)))
        growth = _memory(rig) - before
        rig.scheduler.finish_all()
        # The first gaps belong to the start of all streams.
        gaps = sorted(live.result().gaps_ms[LIVE * _WARM_STEPS :])
    return {
        "p50_ms": round(statistics.median(gaps), 2),
        "p99_ms": round(gaps[int(len(gaps) * 0.99)], 2),
        "max_ms": round(gaps[-1], 2),
    }, growth


def _memory(rig: Rig) -> int:
    memory = measure_memory((rig.pid,))
    return memory.bytes if memory is not None else 0
