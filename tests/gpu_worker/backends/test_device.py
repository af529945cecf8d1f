"""Weights for a GPU's kernels: dense, or in 8 bits with their error told. Nothing is launched."""

import importlib.util
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from gpu_worker.backends.device import DeviceBackend
from gpu_worker.backends.reference import ReferenceBackend
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.loading.loader import ModelFiles, open_model
from gpu_worker.model.linear import DenseLinear

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed (Linux x86-64 only)"
)


@pytest.fixture
def files(twins: Any) -> ModelFiles:
    return open_model(twins("qwen2").source)


def test_dense_weights_are_as_the_reference_has_them(files: ModelFiles) -> None:
    model, reference = (kind.load(files) for kind in (DeviceBackend(torch.bfloat16, CPU, "none"), dense()))
    assert model.weight_bytes == reference.weight_bytes
    assert model.num_parameters == reference.num_parameters
    for layer, wanted in zip(model.loaded.weights.layers, reference.loaded.weights.layers, strict=True):
        assert isinstance(layer.qkv, DenseLinear)
        assert isinstance(wanted.qkv, DenseLinear)
        assert torch.equal(layer.qkv.weight, wanted.qkv.weight)


def test_8_bits_keep_each_weight_within_half_a_step_and_say_what_is_lost(files: ModelFiles) -> None:
    from gpu_worker.kernels.triton.int8_linear import Int8Linear

    reference = dense().load(files)
    with capture_logs() as logs:
        model = DeviceBackend(torch.bfloat16, CPU, "int8").load(files)
    saved = 0
    for layer, wanted in zip(model.loaded.weights.layers, reference.loaded.weights.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            found, held = getattr(layer, name), getattr(wanted, name)
            assert isinstance(found, Int8Linear)
            assert isinstance(held, DenseLinear)
            error = (found.codes.float() * found.scale[:, None] - held.weight.float()).abs()
            assert (error <= found.scale[:, None] * 0.5001).all()
            assert (found.bias is None) == (held.bias is None)
            saved += held.weight.nbytes - found.codes.nbytes - found.scale.nbytes
    assert torch.equal(model.loaded.weights.embedding, reference.loaded.weights.embedding)
    assert model.weight_bytes == reference.weight_bytes - saved
    (line,) = (line for line in logs if line["event"] == "weights_quantised")
    assert line["matrices"] == 4 * files.config.num_layers
    assert 0 < line["mean_relative_error"] <= line["worst_relative_error"] < 0.02


def test_attention_is_the_one_that_was_asked_for(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_worker.kernels.cuda.backend import CudaAttention
    from gpu_worker.kernels.triton.backend import TritonAttention
    from gpu_worker.kernels.triton.shapes import AttentionShape

    # The twin's heads are smaller than any that the kernels do.
    monkeypatch.setattr(AttentionShape, "__post_init__", lambda self: None)
    limits = BatchLimits(4, 16, 32, files.config.vocab_size, 10, 16)
    made: Any = object()
    for cuda_decode, wanted in ((None, TritonAttention), (made, CudaAttention)):
        backend = DeviceBackend(torch.bfloat16, CPU, "none", cuda_decode)
        decoder = backend.load(files).new_decoder(limits)
        assert type(decoder._attention) is wanted
        assert backend.name == wanted.name


def dense() -> ReferenceBackend:
    return ReferenceBackend(torch.bfloat16, CPU)
