"""What a backend is to the rest of the worker."""

from collections.abc import Sequence
from typing import Protocol

import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.loading.reader import Progress
from gpu_worker.model.decoder import LayerPages, StepInput


class StepDecoder(Protocol):
    """A model that computes steps. The KV cache is the caller's."""

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        ...

    @property
    def device(self) -> torch.device:
        """Where inputs are wanted and results appear."""
        ...

    def forward(self, step: StepInput, pages: Sequence[LayerPages]) -> torch.Tensor:
        """Hidden states [T, hidden_size] of a step, before the final norm; good until the next call. Writes KV."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden_size] rows of `forward` to float32 logits [S, vocab_size], good until the next call."""
        ...


class Model(Protocol):
    """Weights in memory."""

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        ...

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors; tied embeddings count once."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        ...

    def new_decoder(self, limits: BatchLimits) -> StepDecoder:
        """A decoder for steps up to these sizes, over a cache of ``limits.num_blocks`` blocks and a dummy."""
        ...


class Backend(Protocol):
    """One way to hold weights and run a model."""

    @property
    def name(self) -> str:
        """As the setting ``worker.attention`` has it."""
        ...

    @property
    def quantization(self) -> str:
        """How weights are held, as the setting ``model.quantization`` has it."""
        ...

    @property
    def is_deterministic(self) -> bool:
        """Whether a token's logits have the same bits in any batch and any cut of its prompt."""
        ...

    def load(self, files: ModelFiles, progress: Progress = ...) -> Model:
        """Reads the weights. Raises ModelLoadError."""
        ...
