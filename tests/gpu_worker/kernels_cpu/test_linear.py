"""Packed linear layers against products in float64, and GGUF blocks against the gguf package."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from gpu_worker.kernels.cpu.arguments import KernelArgumentError
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, WeightKind
from gpu_worker.kernels.cpu.threads import ThreadTeam

SHAPES = [(96, 64), (49, 70), (160, 576), (33, 1536)]
BATCHES = [1, 2, 5, 12, 17, 33, 79]
# Largest error over largest output. 8-bit inputs and weights cost about half a per cent each.
TOLERANCE = {WeightKind.FLOAT32: 3e-6, WeightKind.BFLOAT16: 4e-3, WeightKind.INT8: 2e-2}
GGUF_KINDS = [WeightKind.Q8_0, WeightKind.Q4_0, WeightKind.Q4_1]


@pytest.fixture
def kernels(library: Library, team: ThreadTeam) -> LinearKernels:
    return LinearKernels(library, team)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def blocks_of(kind: WeightKind, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """GGUF blocks of a weight, and the numbers that they stand for."""
    name = GGMLQuantizationType[kind.name]
    blocks = quantize(weight.numpy(), name)
    return torch.from_numpy(blocks), torch.from_numpy(dequantize(blocks, name))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).abs().max() / want.abs().max()).item()


def assert_rows_stand_alone(linear: PackedLinear, x: torch.Tensor, y: torch.Tensor) -> None:
    for row in {0, len(x) // 2, len(x) - 1}:
        assert torch.equal(linear(x[row : row + 1].clone()), y[row : row + 1])


@pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.INT8], ids=lambda k: k.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_exact_and_each_row_alone_has_the_same_bits(
    kernels: LinearKernels, shape: tuple[int, int], kind: WeightKind
) -> None:
    dtype = kind.input_dtype or torch.bfloat16
    weight, bias = numbers(*shape, dtype=dtype), numbers(shape[0], dtype=dtype, seed=1)
    linear = kernels.pack(weight, bias, kind)
    for batch in BATCHES:
        x = numbers(batch, shape[1], dtype=dtype, seed=batch)
        y = linear(x)
        want = x.double() @ weight.double().T + bias.double()
        assert relative_error(y, want) < TOLERANCE[kind]
        assert_rows_stand_alone(linear, x, y)


@pytest.mark.parametrize("largest_exponent", [-126, -60, 127], ids=str)
def test_a_row_alone_has_the_same_bits_at_the_ends_of_the_range(kernels: LinearKernels, largest_exponent: int) -> None:
    """Numbers and products that are too small to be normal, and sums that overflow: where AMX and vectors differ."""
    generator = torch.Generator().manual_seed(largest_exponent)

    def extreme(*shape: int) -> torch.Tensor:
        fraction = torch.randn(shape, generator=generator, dtype=torch.float64)
        exponent = torch.randint(largest_exponent - 12, largest_exponent + 1, shape, generator=generator)
        return torch.ldexp(fraction, exponent).to(torch.bfloat16)

    for scale in (1.0, 2.0**-66, 2.0**60):
        linear = kernels.pack(extreme(49, 320))
        x = (numbers(40, 320) * scale).to(torch.bfloat16)
        together = linear.multiply(x, torch.float32)
        alone = torch.cat([linear.multiply(row, torch.float32) for row in x.split(1)])
        assert torch.equal(alone.view(torch.int32), together.view(torch.int32))


@pytest.mark.parametrize("kind", GGUF_KINDS, ids=lambda k: k.name)
def test_gguf_blocks_are_taken_bit_for_bit(kernels: LinearKernels, kind: WeightKind) -> None:
    blocks, exact = blocks_of(kind, numbers(50, 192))
    linear = kernels.pack_blocks(blocks, kind)
    assert torch.equal(linear.gather(torch.arange(50), torch.float32), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("num_inputs", [192, 544])
@pytest.mark.parametrize("kind", GGUF_KINDS, ids=lambda k: k.name)
def test_gguf_blocks_multiply(kernels: LinearKernels, kind: WeightKind, num_inputs: int, dtype: torch.dtype) -> None:
    """Alone a row goes through vectors, among eight and more through tiles where the processor has them."""
    blocks, exact = blocks_of(kind, numbers(50, num_inputs))
    bias = numbers(50, dtype=dtype, seed=1)
    linear = kernels.pack_blocks(blocks, kind, bias)
    for batch in BATCHES:
        x = numbers(batch, num_inputs, dtype=dtype, seed=batch)
        y = linear(x)
        assert relative_error(y, x.double() @ exact.double().T + bias.double()) < 1.2e-2
        assert_rows_stand_alone(linear, x, y)


@pytest.mark.parametrize("kind", list(WeightKind), ids=lambda k: k.name)
def test_paired_outputs_come_in_their_own_order(kernels: LinearKernels, kind: WeightKind) -> None:
    dtype = kind.input_dtype or torch.float32
    weight, bias = numbers(76, 64, dtype=dtype), numbers(76, dtype=dtype, seed=1)
    x = numbers(7, 64, dtype=dtype, seed=2)
    if kind.block_bytes:
        blocks, _ = blocks_of(kind, weight)
        plain, paired = (kernels.pack_blocks(blocks, kind, bias, each) for each in (False, True))
    else:
        plain, paired = (kernels.pack(weight, bias, kind, each) for each in (False, True))
    assert torch.equal(paired(x), plain(x))


@pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.BFLOAT16], ids=lambda k: k.name)
def test_rows_of_an_embedding_come_back_exactly(kernels: LinearKernels, kind: WeightKind) -> None:
    weight = numbers(49, 70, dtype=kind.input_dtype or torch.float32)
    ids = torch.tensor([48, 0, 3, 3])
    assert torch.equal(kernels.pack(weight).gather(ids, weight.dtype), weight[ids])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_an_input_that_is_zero_or_not_finite_stays_itself(kernels: LinearKernels, poison: float) -> None:
    linear = kernels.pack(numbers(32, 70, dtype=torch.bfloat16), kind=WeightKind.INT8)
    for place in (0, 5, 31, 63, 69):
        x = numbers(3, 70, dtype=torch.bfloat16)
        x[0] = 0
        x[1, place] = poison
        y = linear(x)
        assert torch.equal(y[0], torch.zeros(32, dtype=torch.bfloat16))
        assert y[1].isnan().all()
        assert y[2].isfinite().all()


def test_arguments_that_do_not_fit_are_refused_by_name(kernels: LinearKernels) -> None:
    linear = kernels.pack(numbers(32, 64, dtype=torch.bfloat16))
    with pytest.raises(KernelArgumentError, match=r"x is torch\.float32; BFLOAT16 weights take torch\.bfloat16"):
        linear(numbers(2, 64))
    with pytest.raises(KernelArgumentError, match=r"x has shape \[2, 63\]; wanted \[None, 64\]"):
        linear(numbers(2, 63, dtype=torch.bfloat16))
    with pytest.raises(KernelArgumentError, match="ids outside the 32 rows"):
        linear.gather(torch.tensor([32]), torch.bfloat16)
    with pytest.raises(KernelArgumentError, match="bias has shape"):
        kernels.pack(numbers(32, 64), numbers(31))
    with pytest.raises(KernelArgumentError, match="cannot be packed as Q4_0"):
        kernels.pack(numbers(32, 64), kind=WeightKind.Q4_0)
    with pytest.raises(KernelArgumentError, match="cannot be packed as Q8_0"):
        kernels.pack_blocks(torch.from_numpy(np.zeros((4, 33), dtype=np.uint8)), WeightKind.Q8_0)
    with pytest.raises(KernelArgumentError, match="33 outputs cannot be paired"):
        kernels.pack(numbers(33, 64), paired=True)
