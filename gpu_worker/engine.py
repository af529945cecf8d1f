"""Puts a worker together: model, cache of the size that memory allows, runner; and runs it once at its largest."""

import time
from dataclasses import dataclass

import structlog
import torch

from chairlift.ipc.device import Geometry
from chairlift.runtime.model_source import ModelSource, fingerprint_model
from chairlift.runtime.settings import Settings
from gpu_worker.backends.backend import Backend, Model
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.faults import FaultInjector
from gpu_worker.host_pool import choose_num_host_blocks
from gpu_worker.kv_cache import KvCache, KvCacheSizeError, KvGeometry, num_blocks_within
from gpu_worker.memory import available_host_bytes, cuda_kv_budget
from gpu_worker.runner import Runner
from gpu_worker.sizes import Sizes
from gpu_worker.warm_up import blocks_for_warm_up, warm_up


@dataclass(frozen=True, slots=True)
class Engine:
    """A worker that is ready for a plan of any allowed shape."""

    runner: Runner
    geometry: Geometry


def build_engine(
    settings: Settings,
    source: ModelSource,
    backend: Backend,
    model: Model,
    sizes: Sizes,
    worker_epoch: int,
    faults: FaultInjector,
) -> Engine:
    """Allocates the cache, warms up, and says what there is. Raises KvCacheSizeError, ModelNotFound."""
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
    started = time.perf_counter()
    warm_up(runner, limits, worker_epoch)
    log.info("warmed_up", tokens=sizes.max_num_batched_tokens, seconds=round(time.perf_counter() - started, 3))
    return Engine(runner, _geometry(settings, source, backend, model, sizes, limits))


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
    """Runs the largest step over the smallest cache that holds it; what it leaves is the cache's."""
    few_blocks = blocks_for_warm_up(sizes.max_num_batched_tokens, sizes.block_size, sizes.max_model_len)
    limits = _limits(model, sizes, few_blocks)
    runner = _build_runner(model, sizes, geometry, limits, epoch, FaultInjector())
    torch.cuda.reset_peak_memory_stats(sizes.device)
    warm_up(runner, limits, epoch)
    peak = torch.cuda.max_memory_allocated(sizes.device) - (few_blocks + 1) * geometry.block_bytes
    del runner
    torch.cuda.empty_cache()
    budget = cuda_kv_budget(sizes.device, utilization, peak)
    if budget < 2 * geometry.block_bytes:
        raise KvCacheSizeError(
            f"worker.gpu_memory_utilization={utilization}: weights take {model.weight_bytes >> 20} MiB and the largest "
            f"step {peak >> 20} MiB in all; {budget >> 20} MiB are left for the KV cache"
        )
    return num_blocks_within(budget, geometry)


def _build_runner(
    model: Model, sizes: Sizes, geometry: KvGeometry, limits: BatchLimits, epoch: int, faults: FaultInjector
) -> Runner:
    cache = KvCache(geometry, limits.num_blocks, sizes.device)
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
