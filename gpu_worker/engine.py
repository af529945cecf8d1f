"""Puts a worker together: model, cache of the size that memory allows, runner; and runs it once at its largest."""

import gc
import time
from dataclasses import dataclass

import structlog
import torch

from chairlift.ipc.device import Geometry
from chairlift.runtime.model_source import ModelSource, fingerprint_model
from chairlift.runtime.settings import Settings
from gpu_worker.backends.backend import Backend, Model
from gpu_worker.backends.device import DeviceModel
from gpu_worker.backends.native import NativeModel
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.execution import Execution, Launcher, OverlappedExecution, SerialExecution
from gpu_worker.faults import FaultInjector
from gpu_worker.host_pool import choose_num_host_blocks
from gpu_worker.kv_cache import KvCache, KvGeometry, num_blocks_within
from gpu_worker.memory import DeviceMemory, DeviceMemoryError, available_host_bytes, explained_shortage
from gpu_worker.runner import Runner
from gpu_worker.sizes import Sizes
from gpu_worker.warm_up import WarmUpError, blocks_for_warm_up, warm_up


@dataclass(frozen=True, slots=True)
class Engine:
    """A worker that is ready for a plan of any allowed shape."""

    runner: Runner
    geometry: Geometry
    attention: str
    """Name of the kernels that run the model."""
    largest_step_ns: int
    """What the largest step took, at the first time, with all that is compiled and read for the first time then."""

    def new_execution(self) -> Execution:
        """How the service has the runner carry out plans."""
        return OverlappedExecution(self.runner) if isinstance(self.runner, Launcher) else SerialExecution(self.runner)


def build_engine(
    settings: Settings,
    source: ModelSource,
    backend: Backend,
    model: Model,
    sizes: Sizes,
    worker_epoch: int,
    faults: FaultInjector,
) -> Engine:
    """Allocates the cache, warms up, and says what there is.

    Raises KvCacheSizeError, DeviceMemoryError, WarmUpError, ModelNotFoundError.
    """
    log = structlog.get_logger()
    geometry = KvGeometry.of(model.config, sizes.block_size, sizes.dtype)
    num_blocks = _num_blocks(settings, model, sizes, geometry, worker_epoch)
    limits = _limits(model, sizes, num_blocks, _num_host_blocks(settings, sizes, geometry))
    runner = _build_runner(model, sizes, geometry, limits, worker_epoch, faults)
    log.info(
        "kv_cache_ready",
        blocks=num_blocks,
        tokens=num_blocks * sizes.block_size,
        mib=round(num_blocks * geometry.block_bytes / (1 << 20)),
        bytes_per_token=geometry.bytes_per_token,
        swap_blocks=limits.num_host_blocks,
        swap_mib=limits.num_host_blocks * geometry.block_bytes >> 20,
    )
    started = time.perf_counter_ns()
    _warm_up(runner, limits, worker_epoch, sizes.device)
    took_ns = time.perf_counter_ns() - started
    log.info("warmed_up", tokens=sizes.max_num_batched_tokens, seconds=round(took_ns / 1e9, 3))
    return Engine(runner, _geometry(settings, source, backend, model, sizes, limits), backend.name, took_ns)


def _num_blocks(settings: Settings, model: Model, sizes: Sizes, geometry: KvGeometry, epoch: int) -> int:
    worker = settings.worker
    if worker.kv_cache_bytes is not None:
        return num_blocks_within(worker.kv_cache_bytes, geometry)
    if sizes.device.type == "cuda":
        return _num_blocks_on_cuda(worker.gpu_memory_utilization, model, sizes, geometry, epoch)
    share = int(available_host_bytes() * worker.kv_cache_memory_share)
    return num_blocks_within(min(share, worker.max_kv_cache_bytes), geometry)


def _num_host_blocks(settings: Settings, sizes: Sizes, geometry: KvGeometry) -> int:
    stated, preemption = settings.worker.swap_bytes, settings.scheduler.preemption
    return choose_num_host_blocks(stated, sizes.device.type, preemption, available_host_bytes(), geometry)


def _num_blocks_on_cuda(utilization: float, model: Model, sizes: Sizes, geometry: KvGeometry, epoch: int) -> int:
    """Runs the largest step over the smallest cache that holds it; what it leaves is the cache's.

    What torch reserved at most counts, since that is what it keeps: pools of graphs and cut blocks as well.
    """
    device = sizes.device
    few_blocks = blocks_for_warm_up(sizes.max_num_batched_tokens, sizes.block_size, sizes.max_model_len)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    limits = _limits(model, sizes, few_blocks)
    runner = _build_runner(model, sizes, geometry, limits, epoch, FaultInjector(), is_measuring=True)
    _warm_up(runner, limits, epoch, device)
    peak = torch.cuda.max_memory_reserved(device) - (few_blocks + 1) * geometry.block_bytes
    del runner
    gc.collect()
    torch.cuda.empty_cache()
    memory = DeviceMemory.of(device)
    budget = memory.budget(utilization) - peak
    structlog.get_logger().info(
        "device_memory",
        total_mib=memory.total >> 20,
        weights_mib=model.weight_bytes >> 20,
        largest_step_mib=max(0, peak - memory.reserved) >> 20,
        elsewhere_mib=memory.held_elsewhere >> 20,
        kv_cache_mib=max(0, budget) >> 20,
    )
    if budget < 2 * geometry.block_bytes:
        raise DeviceMemoryError(
            f"worker.gpu_memory_utilization={utilization}: weights take {model.weight_bytes >> 20} MiB, and with the "
            f"largest step {peak >> 20} MiB are used; {budget >> 20} MiB are left for the KV cache; {memory}"
        )
    return num_blocks_within(budget, geometry)


def _warm_up(runner: Runner, limits: BatchLimits, epoch: int, device: torch.device) -> None:
    try:
        warm_up(runner, limits, epoch)
    except WarmUpError as error:
        if device.type != "cuda":
            raise
        raise WarmUpError(f"{error}; {DeviceMemory.of(device)}") from None


def _build_runner(
    model: Model,
    sizes: Sizes,
    geometry: KvGeometry,
    limits: BatchLimits,
    epoch: int,
    faults: FaultInjector,
    *,
    is_measuring: bool = False,
) -> Runner:
    with explained_shortage(f"making a KV cache of {limits.num_blocks} blocks and what a step needs", sizes.device):
        cache = KvCache(geometry, limits.num_blocks, sizes.device)
        match model:
            case DeviceModel():
                return model.new_runner(cache, limits, epoch, faults, is_measuring=is_measuring)
            case NativeModel():
                decoder = model.new_decoder(limits)
                return Runner(decoder, cache, limits, epoch, faults, decoder.greedy, decoder.decode_greedily)
            case _:
                return Runner(model.new_decoder(limits), cache, limits, epoch, faults)


def _limits(model: Model, sizes: Sizes, num_blocks: int, num_host_blocks: int = 0) -> BatchLimits:
    return BatchLimits(
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        sizes.max_model_len,
        model.config.vocab_size,
        num_blocks,
        sizes.block_size,
        num_host_blocks,
    )


def _geometry(
    settings: Settings, source: ModelSource, backend: Backend, model: Model, sizes: Sizes, limits: BatchLimits
) -> Geometry:
    return Geometry(
        model=settings.model.served_name or source.name,
        fingerprint=fingerprint_model(source),
        vocab_size=model.config.vocab_size,
        max_model_len=sizes.max_model_len,
        eos_token_ids=model.config.eos_token_ids,
        block_size=sizes.block_size,
        num_blocks=limits.num_blocks,
        num_host_blocks=limits.num_host_blocks,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        kv_bytes_per_token=KvGeometry.of(model.config, sizes.block_size, sizes.dtype).bytes_per_token,
        dtype=str(sizes.dtype).removeprefix("torch."),
        quantization=backend.quantization,
        device=sizes.device.type,
        deterministic=backend.is_deterministic,
        num_parameters=model.num_parameters,
    )
