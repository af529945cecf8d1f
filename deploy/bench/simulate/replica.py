"""A simulated replica by settings, and one measurement of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chairlift.ipc import device
from chairlift.runtime.settings import Settings
from deploy.bench.load.client import TargetModel
from deploy.bench.measure import Measurement, measure_virtually
from deploy.bench.observe.server import SAMPLE_INTERVAL_S, LoadSample, ServerWatch
from deploy.bench.output.result import RunResult
from deploy.bench.simulate.client import SimulatedClient
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.simulate.server import SimulatedServer
from deploy.bench.simulate.virtual_time import VirtualClock, run_virtually
from scheduler_svc.core.units import to_config

_KV_BYTES_PER_TOKEN = 23_040
"""Of the built-in model in bfloat16: 30 layers, 3 heads of 64, K and V."""
_DEFAULT_SWAP_BYTES = 1 << 30


def simulate(settings: Settings, cost: DeviceCost, prepare: Callable[[TargetModel], Measurement]) -> RunResult:
    """One run against a fresh replica. Blocks: it computes all the time. Not from within a running event loop.

    Raises what the workload raises.
    """

    async def main() -> RunResult:
        clock, geometry = VirtualClock(), make_geometry(settings)
        server = SimulatedServer(to_config(settings.scheduler), geometry, cost)
        client = SimulatedClient(server, geometry, clock)
        wanted = prepare(await client.describe())
        return await measure_virtually(client, wanted, clock, _watch(server, clock))

    return run_virtually(main)


def make_geometry(settings: Settings) -> device.Geometry:
    """A device with the KV cache that the settings allow, sized for the built-in model."""
    kv_bytes = settings.worker.kv_cache_bytes or settings.worker.max_kv_cache_bytes
    block_size = settings.scheduler.block_size
    return device.Geometry(
        model="simulated",
        fingerprint="simulated",
        vocab_size=49_152,
        max_model_len=settings.model.max_model_len or 8192,
        eos_token_ids=(2,),
        block_size=block_size,
        num_blocks=max(1, kv_bytes // (_KV_BYTES_PER_TOKEN * block_size)),
        num_host_blocks=_swap_bytes(settings) // (_KV_BYTES_PER_TOKEN * block_size),
        max_num_seqs=max(settings.scheduler.max_num_seqs or 0, 256),
        max_num_batched_tokens=max(settings.scheduler.max_num_batched_tokens or 0, 2048),
        kv_bytes_per_token=_KV_BYTES_PER_TOKEN,
        dtype="none",
        deterministic=True,
    )


def _swap_bytes(settings: Settings) -> int:
    if settings.worker.swap_bytes is not None:
        return settings.worker.swap_bytes
    return _DEFAULT_SWAP_BYTES if settings.scheduler.preemption == "swap" else 0


@asynccontextmanager
async def _watch(server: SimulatedServer, clock: VirtualClock) -> AsyncIterator[ServerWatch]:
    watch = ServerWatch(why_no_iterations="not kept on the simulator")

    def sample() -> None:
        load = server.load()
        watch.samples.append(
            LoadSample(
                clock.now_ns(),
                load.running,
                load.waiting,
                load.blocks_used,
                load.blocks_total,
                load.preemptions,
                load.steps,
                load.output_tokens,
                load.cached_tokens,
                load.prompt_tokens,
            )
        )

    async def keep_sampling() -> None:
        while True:
            sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    task = asyncio.create_task(keep_sampling())
    try:
        yield watch
    finally:
        task.cancel()
        sample()
