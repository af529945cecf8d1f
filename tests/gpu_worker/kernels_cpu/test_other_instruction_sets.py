"""Builds for CPUs that are neither this one's best nor the most common: each product and attention, once.

What differs is how a product of bf16 or of bytes is made up where the CPU has no instruction for it.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu.attention import CpuAttention
from gpu_worker.kernels.cpu.instruction_sets import INSTRUCTION_SETS, usable_instruction_sets
from gpu_worker.kernels.cpu.library import Library, load_library
from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, WeightKind
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.torch_attention import TorchAttention

TOLERANCE = {WeightKind.FLOAT32: 3e-6, WeightKind.BFLOAT16: 4e-3}


@pytest.fixture(scope="module", params=["v4-vnni", "v4"])
def other(request: pytest.FixtureRequest) -> Library:
    if request.param not in {each.name for each in usable_instruction_sets()}:
        pytest.skip(f"this machine has no instruction set {request.param}")
    try:
        return load_library(request.param)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def test_the_names_are_those_that_are_built() -> None:
    assert [each.name for each in INSTRUCTION_SETS] == ["amx", "v4-bf16", "v4-vnni", "v4", "v3"]


@pytest.mark.parametrize("kind", list(WeightKind), ids=lambda kind: kind.name)
def test_products(other: Library, kind: WeightKind) -> None:
    """Close to exact, and a row alone has the bits that it has among others."""
    kernels = LinearKernels(other, ThreadTeam(other, 2))
    generator = torch.Generator().manual_seed(3)
    dtype = kind.input_dtype or torch.bfloat16
    weight = torch.randn(49, 192, generator=generator).to(dtype)
    linear, exact = _pack(kernels, weight, kind)
    for batch in (1, 5, 33):
        x = torch.randn(batch, 192, generator=generator).to(dtype)
        y = linear(x)
        want = x.double() @ exact.double().T
        assert (y.double() - want).abs().max() < TOLERANCE.get(kind, 2e-2) * want.abs().max()
        assert torch.equal(linear(x[-1:].clone()), y[-1:])


def _pack(kernels: LinearKernels, weight: torch.Tensor, kind: WeightKind) -> tuple[PackedLinear, torch.Tensor]:
    if not kind.block_bytes:
        return kernels.pack(weight, None, kind), weight
    name = GGMLQuantizationType[kind.name]
    blocks = quantize(weight.float().numpy(), name)
    return kernels.pack_blocks(torch.from_numpy(blocks), kind), torch.from_numpy(dequantize(blocks, name))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"])
def test_attention(other: Library, make_batch: Any, dtype: torch.dtype, tolerance: float) -> None:
    batch = make_batch([(1, 77), (1, 5), (20, 50)], (6, 2), 64, 16, dtype)
    got = (
        CpuAttention(other, ThreadTeam(other, 2))
        .prepare(batch.layout)
        .attend(batch.q, batch.k_pages, batch.v_pages, None)
    )
    reference = TorchAttention(2, 16, len(batch.k_pages)).prepare(batch.layout)
    want = reference.attend(batch.q.float(), batch.k_pages.float(), batch.v_pages.float(), None)
    torch.testing.assert_close(got.float(), want, atol=tolerance, rtol=tolerance)


def test_helpers_run_where_they_are_put(other: Library) -> None:
    """The caller's own place is left alone: threads that it starts later would inherit it."""
    allowed = sorted(os.sched_getaffinity(0))
    before = {path.name for path in Path("/proc/self/task").iterdir()}
    team = ThreadTeam(other, 2, cpus=(allowed[0], allowed[-1]))
    started = [path for path in Path("/proc/self/task").iterdir() if path.name not in before]
    places = [line for path in started for line in (path / "status").read_text().splitlines() if "allowed_list" in line]
    assert f"Cpus_allowed_list:\t{allowed[-1]}" in places
    assert sorted(os.sched_getaffinity(0)) == allowed
    assert team.num_threads == 2
