"""Models on native kernels; skipped, with the reason, where this machine has none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chairlift.runtime.model_source import ModelSource
from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.backends.native import NativeBackend, NativeModel
from gpu_worker.loading.loader import open_model
from gpu_worker.threads import ThreadPlan


@pytest.fixture(scope="session")
def load_native() -> Callable[..., NativeModel]:
    """Loads a model; two threads, so that work is divided."""

    def load(source: ModelSource, dtype: torch.dtype = torch.float32, quantization: str = "none") -> NativeModel:
        try:
            backend = NativeBackend(dtype, quantization, ThreadPlan(2, 0.0, ()))
        except KernelsUnavailableError as error:
            pytest.skip(str(error))
        return backend.load(open_model(source))

    return load


@pytest.fixture
def steps() -> Callable[[Any, list[int], list[int]], torch.Tensor]:
    """Logits of one row's tokens, computed in pieces of these lengths."""

    def run(driver: Any, tokens: list[int], cuts: list[int]) -> torch.Tensor:
        found, done = [], 0
        for cut in cuts:
            found.append(driver.step({0: tokens[done : done + cut]})[0])
            done += cut
        return torch.cat(found)

    return run
