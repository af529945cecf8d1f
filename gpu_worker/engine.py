"""Puts a worker together: model, cache of the size that memory allows, runner; and runs it once at its largest."""

import time
from dataclasses import dataclass

import msgspec
import structlog
import torch

from chairlift.ipc.device import Geometry
from chairlift.runtime.model_source import ModelSource, fingerprint_model
from chairlift.runtime.settings import Settings
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.faults import FaultInjector
from gpu_worker.kv_cache import KvCache, KvCacheSizeError, KvGeometry, num_blocks_within
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import LoadedModel
from gpu_worker.memory import available_host_bytes, cuda_kv_budget
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.ops import TorchOps
from gpu_worker.model.torch_attention import TorchAttention
from gpu_worker.runner import Runner
from gpu_worker.warm_up import blocks_for_warm_up, warm_up

DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class UnusableSettingsError(ValueError):
    """Settings that this model or machine cannot serve. The message names the setting."""


class DeviceDefaults(msgspec.Struct, frozen=True):
    """Knobs whose best value depends on the device, where the operator set none."""

    max_num_seqs: int
    max_num_batched_tokens: int


_DEFAULTS = {"cpu": DeviceDefaults(64, 512), "cuda": DeviceDefaults(256, 8192)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is decided before weights are read."""

    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Engine:
    """A worker that is ready for a plan of any allowed shape."""

    runner: Runner
    geometry: Geometry


def choose_sizes(settings: Settings, config: ModelConfig) -> Sizes:
    """Settings and defaults against the model. Raises UnusableSettingsError."""
    name = settings.worker.device
    if name == "cuda" and not torch.cuda.is_available():
        raise UnusableSettingsError("worker.device=cuda: torch sees no CUDA device")
    stated = settings.model.max_model_len
    if stated is not None and stated > config.context_length:
        raise UnusableSettingsError(f"model.max_model_len={stated}: the model's context is {config.context_length}")
    defaults, scheduler = _DEFAULTS[name], settings.scheduler
    max_num_seqs = scheduler.max_num_seqs or defaults.max_num_seqs
    tokens = scheduler.max_num_batched_tokens
    if tokens is not None and tokens < max_num_seqs:
        raise UnusableSettingsError(
            f"scheduler.max_num_batched_tokens={tokens}: below {max_num_seqs} sequences, which decode a token each"
        )
    return Sizes(
        torch.device(name),
        DTYPES[settings.model.dtype],
        stated or config.context_length,
        max_num_seqs,
        tokens or max(defaults.max_num_batched_tokens, max_num_seqs),
        scheduler.block_size,
    )


def build_engine(
    settings: Settings, source: ModelSource, model: LoadedModel, sizes: Sizes, worker_epoch: int, faults: FaultInjector
) -> Engine:
    """Allocates the cache, warms up, and says what there is. Raises KvCacheSizeError, ModelNotFound."""
    log = structlog.get_logger()
    if settings.worker.deterministic:
        log.warning("not_deterministic", reason="this build's kernels round by the shape of the batch")
    geometry = KvGeometry.of(model.config, sizes.block_size, sizes.dtype)
    num_blocks = _num_blocks(settings, model, sizes, geometry, worker_epoch)
    runner = _build_runner(model, sizes, geometry, num_blocks, worker_epoch, faults)
    log.info(
        "kv_cache_ready",
        blocks=num_blocks,
        tokens=num_blocks * sizes.block_size,
        mib=round(num_blocks * geometry.block_bytes / (1 << 20)),
        bytes_per_token=geometry.bytes_per_token,
    )
    limits = _limits(model, sizes, num_blocks)
    started = time.perf_counter()
    warm_up(runner, limits, worker_epoch)
    log.info("warmed_up", tokens=sizes.max_num_batched_tokens, seconds=round(time.perf_counter() - started, 3))
    return Engine(runner, _geometry(settings, source, model, sizes, num_blocks))


def _num_blocks(settings: Settings, model: LoadedModel, sizes: Sizes, geometry: KvGeometry, epoch: int) -> int:
    worker = settings.worker
    if worker.kv_cache_bytes is not None:
        return num_blocks_within(worker.kv_cache_bytes, geometry)
    if sizes.device.type == "cuda":
        return _num_blocks_on_cuda(worker.gpu_memory_utilization, model, sizes, geometry, epoch)
    share = int(available_host_bytes() * worker.kv_cache_memory_share)
    return num_blocks_within(min(share, worker.max_kv_cache_bytes), geometry)


def _num_blocks_on_cuda(utilization: float, model: LoadedModel, sizes: Sizes, geometry: KvGeometry, epoch: int) -> int:
    """Runs the largest step over the smallest cache that holds it; what it leaves is the cache's."""
    few_blocks = blocks_for_warm_up(sizes.max_num_batched_tokens, sizes.block_size, sizes.max_model_len)
    runner = _build_runner(model, sizes, geometry, few_blocks, epoch, FaultInjector())
    torch.cuda.reset_peak_memory_stats(sizes.device)
    warm_up(runner, _limits(model, sizes, few_blocks), epoch)
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
    model: LoadedModel, sizes: Sizes, geometry: KvGeometry, num_blocks: int, epoch: int, faults: FaultInjector
) -> Runner:
    cache = KvCache(geometry, num_blocks, sizes.device)
    attention = TorchAttention(model.config.num_kv_heads, sizes.block_size, num_blocks + 1)
    decoder = Decoder(model.config, model.weights, TorchOps(), attention, sizes.max_model_len)
    return Runner(decoder, cache, _limits(model, sizes, num_blocks), epoch, faults)


def _limits(model: LoadedModel, sizes: Sizes, num_blocks: int) -> BatchLimits:
    return BatchLimits(
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        sizes.max_model_len,
        model.config.vocab_size,
        num_blocks,
        sizes.block_size,
    )


def _geometry(settings: Settings, source: ModelSource, model: LoadedModel, sizes: Sizes, num_blocks: int) -> Geometry:
    return Geometry(
        model=settings.model.served_name or source.name,
        fingerprint=fingerprint_model(source),
        vocab_size=model.config.vocab_size,
        max_model_len=sizes.max_model_len,
        eos_token_ids=model.config.eos_token_ids,
        block_size=sizes.block_size,
        num_blocks=num_blocks,
        num_host_blocks=0,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        kv_bytes_per_token=KvGeometry.of(model.config, sizes.block_size, sizes.dtype).bytes_per_token,
        dtype=str(sizes.dtype).removeprefix("torch."),
        device=sizes.device.type,
        num_parameters=model.num_parameters,
    )
