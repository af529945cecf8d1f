"""The model on Triton's kernels, as a `Backend`, and the runner that goes with it."""

from dataclasses import dataclass

import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.cuda_runner.buckets import graph_buckets
from gpu_worker.cuda_runner.graphs import CudaGraphCapturer
from gpu_worker.cuda_runner.runner import CudaOptions, CudaRunner
from gpu_worker.faults import FaultInjector
from gpu_worker.kernels.triton.backend import TritonAttention, TritonOps
from gpu_worker.kernels.triton.checks import KernelArgumentError
from gpu_worker.kernels.triton.shapes import QUERY_DTYPES, AttentionShape, DeviceClass
from gpu_worker.kv_cache import KvCache
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import LoadedModel, ModelFiles
from gpu_worker.loading.reader import Progress, no_progress
from gpu_worker.model.decoder import Decoder


@dataclass(frozen=True, slots=True)
class TritonModel:
    """Dense weights on the device. A `Model`."""

    loaded: LoadedModel

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        return self.loaded.config

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        return self.loaded.num_parameters

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.loaded.weight_bytes

    def new_decoder(self, limits: BatchLimits) -> Decoder:
        """As `Model.new_decoder`."""
        config, weights = self.loaded.config, self.loaded.weights
        shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, limits.block_size)
        attention = TritonAttention(shape, weights.embedding.device)
        return Decoder(config, weights, TritonOps(), attention, limits.max_model_len)


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """A `Backend` of Triton kernels. Products round by the shape of the batch, as the libraries beneath them do."""

    dtype: torch.dtype
    device: torch.device
    name = "triton"
    quantization = "none"
    is_deterministic = False

    def load(self, files: ModelFiles, progress: Progress = no_progress) -> TritonModel:
        """As `Backend.load`: tensor by tensor onto the device."""
        return TritonModel(files.load(self.dtype, self.device, progress))


def find_triton_obstacle(config: ModelConfig, dtype: torch.dtype, block_size: int, device: torch.device) -> str | None:
    """Why these kernels cannot run a model here; None where they can."""
    if dtype not in QUERY_DTYPES:
        return f"model.dtype={str(dtype).removeprefix('torch.')}: the kernels do bfloat16 and float16"
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
    graphs: bool = True,
) -> CudaRunner:
    """The runner for a GPU, its graphs captured; `graphs=False` (while memory is measured) runs every step eagerly."""
    options = CudaOptions(graph_buckets(limits.max_num_seqs) if graphs else ())
    return CudaRunner(decoder, cache, limits, worker_epoch, options, CudaGraphCapturer(decoder.device), faults)
