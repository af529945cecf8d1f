"""What is decided before weights are read: device, dtype and the largest step, from settings and the model."""

from dataclasses import dataclass

import msgspec
import torch

from chairlift.runtime.settings import Settings
from gpu_worker.loading.config import ModelConfig

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
    """Of one worker."""

    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int


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
        # With its number, as tensors on it say it.
        torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name),
        DTYPES[settings.model.dtype],
        stated or config.context_length,
        max_num_seqs,
        tokens or max(defaults.max_num_batched_tokens, max_num_seqs),
        scheduler.block_size,
    )
