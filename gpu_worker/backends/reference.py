"""The model in plain torch, on any device."""

from dataclasses import dataclass

import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import LoadedModel, ModelFiles
from gpu_worker.loading.reader import Progress, no_progress
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.ops import TorchOps
from gpu_worker.model.torch_attention import TorchAttention


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """Dense weights. A `Model`."""

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
        attention = TorchAttention(self.config.num_kv_heads, limits.block_size, limits.num_blocks + 1)
        return Decoder(self.config, self.loaded.weights, TorchOps(), attention, limits.max_model_len)


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """A `Backend` of torch operations. Libraries beneath them round by the shape of the batch."""

    dtype: torch.dtype
    device: torch.device
    name = "reference"
    quantization = "none"
    is_deterministic = False

    def load(self, files: ModelFiles, progress: Progress = no_progress) -> ReferenceModel:
        """As `Backend.load`."""
        return ReferenceModel(files.load(self.dtype, self.device, progress))
