"""The one entrance of loading: a `ModelSource` in, configuration and weights out."""

from dataclasses import dataclass

import torch

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.loading.assembler import Assembler, Progress
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.gguf_config import read_gguf_config
from gpu_worker.loading.gguf_file import GgufFile
from gpu_worker.loading.gguf_source import GgufSource
from gpu_worker.loading.hf_config import read_hf_config
from gpu_worker.loading.safetensors_source import SafetensorsSource
from gpu_worker.loading.tensor_names import check_tensors, expected_tensors
from gpu_worker.loading.tensor_source import TensorSource
from gpu_worker.model.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready to run."""

    config: ModelConfig
    weights: DecoderWeights
    num_parameters: int
    """Elements of all tensors; tied embeddings count once."""
    weight_bytes: int


def load_model(
    source: ModelSource, dtype: torch.dtype, device: torch.device, progress: Progress = lambda done, total: None
) -> LoadedModel:
    """Reads configuration and weights. Everything that can be wrong is found before memory is taken, but for damage
    inside the data of one tensor.

    `dtype` is float32 or bfloat16. Raises ModelLoadError.
    """
    config, tensors = _open(source)
    check_tensors(config, tensors)
    weights = Assembler(config, tensors, dtype, device, progress).build()
    num_parameters = sum(torch.Size(shape).numel() for shape in expected_tensors(config).values())
    return LoadedModel(config, weights, num_parameters, num_parameters * dtype.itemsize)


def _open(source: ModelSource) -> tuple[ModelConfig, TensorSource]:
    match source.kind:
        case SourceKind.GGUF:
            file = GgufFile(source.path)
            config = read_gguf_config(file)
            return config, GgufSource(file, config)
        case SourceKind.HUGGINGFACE:
            return read_hf_config(source.path), SafetensorsSource(source.path)
