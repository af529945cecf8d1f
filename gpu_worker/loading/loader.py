"""The one entrance of loading: a `ModelSource` in, configuration and weights out."""

import math
from dataclasses import dataclass

import torch

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.loading.assembler import Assembler, MakeLinear
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.gguf_config import read_gguf_config
from gpu_worker.loading.gguf_file import GgufFile
from gpu_worker.loading.gguf_source import GgufSource
from gpu_worker.loading.hf_config import read_hf_config
from gpu_worker.loading.reader import Progress, no_progress
from gpu_worker.loading.safetensors_source import SafetensorsSource
from gpu_worker.loading.tensor_names import check_tensors, expected_tensors
from gpu_worker.loading.tensor_source import TensorSource
from gpu_worker.model.linear import DenseLinear
from gpu_worker.model.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready to run."""

    config: ModelConfig
    weights: DecoderWeights
    num_parameters: int
    """Elements of all tensors; tied embeddings count once."""
    weight_bytes: int
    """As stored in `dtype` throughout."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model whose files have been found whole and fitting; its weights are not read yet."""

    source: ModelSource
    config: ModelConfig
    tensors: TensorSource

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors; tied embeddings count once."""
        return sum(math.prod(shape) for shape in expected_tensors(self.config).values())

    @property
    def has_blocks(self) -> bool:
        """Whether any weight is stored quantised."""
        return any(self.tensors.block_kind(name) is not None for name in expected_tensors(self.config))

    def load(
        self,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress = no_progress,
        make_linear: MakeLinear = DenseLinear,
    ) -> LoadedModel:
        """Reads the weights, in float32 or bfloat16. Raises ModelLoadError for damage inside one tensor's data."""
        weights = Assembler(self.config, self.tensors, dtype, device, progress, make_linear).build()
        return LoadedModel(self.config, weights, self.num_parameters, self.num_parameters * dtype.itemsize)


def open_model(source: ModelSource) -> ModelFiles:
    """Reads the configuration and the tables of tensors, and checks one against the other. Raises ModelLoadError."""
    config, tensors = _open(source)
    check_tensors(config, tensors)
    return ModelFiles(source, config, tensors)


def _open(source: ModelSource) -> tuple[ModelConfig, TensorSource]:
    match source.kind:
        case SourceKind.GGUF:
            file = GgufFile(source.path)
            config = read_gguf_config(file)
            return config, GgufSource(file, config)
        case SourceKind.HUGGINGFACE:
            return read_hf_config(source.path), SafetensorsSource(source.path)
