"""GGUF blocks go into native kernels as they are: the numbers that come out are those of the file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.backends.native import NativeBackend
from gpu_worker.backends.packed_assembler import PackedAssembler
from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, WeightKind
from gpu_worker.kernels.cpu.packing import PackedWeights
from gpu_worker.loading.loader import ModelFiles, open_model
from gpu_worker.threads import ThreadPlan


@pytest.fixture(scope="module")
def kernels() -> LinearKernels:
    try:
        backend = NativeBackend(torch.float32, "gguf", ThreadPlan(1, 0.0, ()))
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    return LinearKernels(backend._library, backend._team)


def source_of(path: Path) -> ModelSource:
    return ModelSource("m", SourceKind.GGUF, path)


def packed(files: ModelFiles, kernels: LinearKernels) -> PackedWeights:
    return PackedAssembler(files, torch.float32, "gguf", kernels, lambda done, total: None).build()


def numbers(linear: PackedLinear) -> torch.Tensor:
    return linear.gather(torch.arange(linear.out_features), torch.float32)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_without_loss(kind: str, write_gguf: Any, llama_tensors: Any, kernels: LinearKernels) -> None:
    path = write_gguf(llama_tensors(), GGMLQuantizationType[kind])
    weights = packed(open_model(source_of(path)), kernels)
    dense: Any = open_model(source_of(path)).load(torch.float32, torch.device("cpu")).weights
    assert weights.head is weights.embedding
    assert torch.equal(numbers(weights.embedding), dense.embedding)
    for layer, wanted in zip(weights.layers, dense.layers, strict=True):
        for name in ("qkv", "output", "down"):
            linear = getattr(layer, name)
            assert linear.kind is WeightKind[kind]
            assert torch.equal(numbers(linear), getattr(wanted, name).weight)


def test_layers_of_mixed_formats_are_held_as_numbers(
    write_gguf: Any, llama_tensors: Any, kernels: LinearKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query, key and value are one product; where the file has them in two formats there is no format for it."""
    path = write_gguf(llama_tensors(), GGMLQuantizationType.Q8_0)
    files = open_model(source_of(path))
    kind_of = files.tensors.block_kind
    monkeypatch.setattr(files.tensors, "block_kind", lambda name: None if "v_proj" in name else kind_of(name))
    layer = packed(files, kernels).layers[0]
    assert (layer.qkv.kind, layer.output.kind) == (WeightKind.FLOAT32, WeightKind.Q8_0)
    dense: Any = open_model(source_of(path)).load(torch.float32, torch.device("cpu")).weights
    assert torch.equal(numbers(layer.qkv), dense.layers[0].qkv.weight)
