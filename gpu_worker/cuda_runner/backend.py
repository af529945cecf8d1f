"""Whether these kernels can run a model here, and the runner that goes with them."""

import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.cuda_runner.buckets import graph_buckets
from gpu_worker.cuda_runner.graphs import CudaGraphCapturer
from gpu_worker.cuda_runner.runner import CudaOptions, CudaRunner
from gpu_worker.faults import FaultInjector
from gpu_worker.kernels.triton.checks import KernelArgumentError
from gpu_worker.kernels.triton.shapes import QUERY_DTYPES, AttentionShape, DeviceClass
from gpu_worker.kv_cache import KvCache
from gpu_worker.loading.config import ModelConfig
from gpu_worker.model.decoder import Decoder


def find_triton_obstacle(config: ModelConfig, dtype: torch.dtype, block_size: int, device: torch.device) -> str | None:
    """Why these kernels cannot run a model here; None where they can."""
    if dtype not in QUERY_DTYPES:
        return f"model.dtype={str(dtype).removeprefix('torch.')}: the kernels do bfloat16"
    try:
        AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, block_size)
        DeviceClass.of(device)
    except KernelArgumentError as error:
        return str(error)
    return None


def make_cuda_runner(
    decoder: Decoder,
    cache: KvCache,
    limits: BatchLimits,
    worker_epoch: int,
    faults: FaultInjector | None = None,
    *,
    largest_graph_only: bool = False,
) -> CudaRunner:
    """The runner for a GPU, its graphs captured."""
    buckets = (limits.max_num_seqs,) if largest_graph_only else graph_buckets(limits.max_num_seqs)
    capturer = CudaGraphCapturer(decoder.device)
    return CudaRunner(decoder, cache, limits, worker_epoch, CudaOptions(buckets), capturer, faults)
