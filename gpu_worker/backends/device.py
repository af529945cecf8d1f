"""The model on a GPU's kernels: weights on the device, a decoder over Triton's operations, and its runner.

Triton is imported where a decoder or runner is made, since machines without a GPU need not have it.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.faults import FaultInjector
from gpu_worker.kv_cache import KvCache
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.int8 import Int8Rows, quantise_rows
from gpu_worker.loading.loader import LoadedModel, ModelFiles
from gpu_worker.loading.reader import Progress, no_progress
from gpu_worker.model.attention import AttentionBackend
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.linear import Linear

if TYPE_CHECKING:
    from gpu_worker.cuda_runner.runner import CudaRunner
    from gpu_worker.kernels.cuda.decode import CudaDecode


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Weights on a device. A `Model`."""

    loaded: LoadedModel
    weight_bytes: int
    cuda_decode: "CudaDecode | None" = None
    """Decode attention in CUDA C++, where it was asked for."""

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        return self.loaded.config

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        return self.loaded.num_parameters

    def new_decoder(self, limits: BatchLimits) -> Decoder:
        """As `Model.new_decoder`."""
        from gpu_worker.kernels.triton.backend import TritonOps

        attention = self._attention(limits.block_size)
        return Decoder(self.config, self.loaded.weights, TritonOps(), attention, limits.max_model_len)

    def new_runner(
        self, cache: KvCache, limits: BatchLimits, worker_epoch: int, faults: FaultInjector, *, is_measuring: bool
    ) -> "CudaRunner":
        """The runner with its graphs captured; while memory is measured only the largest, which has room for all."""
        from gpu_worker.cuda_runner.backend import make_cuda_runner

        decoder = self.new_decoder(limits)
        return make_cuda_runner(decoder, cache, limits, worker_epoch, faults, largest_graph_only=is_measuring)

    def _attention(self, block_size: int) -> AttentionBackend:
        from gpu_worker.kernels.cuda.backend import CudaAttention
        from gpu_worker.kernels.triton.backend import TritonAttention
        from gpu_worker.kernels.triton.shapes import AttentionShape

        config, device = self.config, self.loaded.weights.embedding.device
        shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, block_size)
        if self.cuda_decode is None:
            return TritonAttention(shape, device)
        return CudaAttention(shape, device, self.cuda_decode)


class DeviceBackend:
    """A `Backend` of GPU kernels. Products round by the shape of the batch, as the libraries beneath them do."""

    is_deterministic = False

    def __init__(
        self, dtype: torch.dtype, device: torch.device, quantization: str, cuda_decode: "CudaDecode | None" = None
    ) -> None:
        """`quantization`: ``none`` or ``int8``. `cuda_decode` takes decode attention over from Triton's kernel."""
        self.name = "triton" if cuda_decode is None else "cuda"
        self.quantization = quantization
        self._dtype = dtype
        self._device = device
        self._cuda_decode = cuda_decode

    def load(self, files: ModelFiles, progress: Progress = no_progress) -> DeviceModel:
        """As `Backend.load`: tensor by tensor from the mapped shards onto the device."""
        if self.quantization != "int8":
            loaded = files.load(self._dtype, self._device, progress)
            return DeviceModel(loaded, loaded.weight_bytes, self._cuda_decode)
        quantiser = _Quantiser()
        loaded = files.load(self._dtype, self._device, progress, quantiser.linear)
        quantiser.report()
        return DeviceModel(loaded, loaded.weight_bytes - quantiser.saved_bytes, self._cuda_decode)


class _Quantiser:
    """Turns each layer's weights into 8 bits as they come, and keeps account of what that loses."""

    def __init__(self) -> None:
        self.saved_bytes = 0
        self._errors: list[torch.Tensor] = []
        self._seconds = 0.0

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        from gpu_worker.kernels.triton.int8_linear import Int8Linear

        started = time.perf_counter()
        rows: Int8Rows = quantise_rows(weight)
        self._errors.append(rows.relative_error)
        self.saved_bytes += weight.nbytes - rows.codes.nbytes - rows.scale.nbytes
        self._seconds += time.perf_counter() - started
        return Int8Linear(rows.codes, rows.scale, bias)

    def report(self) -> None:
        """One line: error of the weights, by norm, over all matrices and of the worst."""
        errors = torch.stack(self._errors)
        structlog.get_logger().info(
            "weights_quantised",
            matrices=len(self._errors),
            mean_relative_error=round(float(errors.mean()), 5),
            worst_relative_error=round(float(errors.max()), 5),
            saved_mib=self.saved_bytes >> 20,
            seconds=round(self._seconds, 2),
        )
