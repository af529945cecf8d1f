"""Native norms, rotary embedding with the KV write, and SiLU against `TorchOps`."""

import pytest
import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.ops import CpuOps
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots, TorchOps

TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float32: 1e-5}

both_dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])


@pytest.fixture
def ops(library: Library, team: ThreadTeam) -> CpuOps:
    return CpuOps(library, team)


def assert_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 576), (7, 577), (33, 8), (2, 3, 64), (5, 1000)])
def test_rms_norm(ops: CpuOps, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = numbers(*shape, dtype=dtype), numbers(shape[-1], dtype=dtype, seed=1)
    got = ops.rms_norm(x, weight, 1e-5)
    assert_close(got, TorchOps().rms_norm(x.float(), weight.float(), 1e-5), dtype)


@both_dtypes
def test_add_rms_norm_also_updates_the_residual(ops: CpuOps, dtype: torch.dtype) -> None:
    x, residual, weight = (numbers(9, 579, dtype=dtype, seed=seed) for seed in (0, 1, 2))
    weight = weight[0].clone()
    want_residual = residual + x
    got = ops.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, want_residual)
    want = TorchOps().rms_norm(want_residual.float(), weight.float(), 1e-6)
    assert_close(got, want, dtype)


@both_dtypes
@pytest.mark.parametrize("width", [1, 15, 64, 1536])
def test_silu_mul(ops: CpuOps, width: int, dtype: torch.dtype) -> None:
    gate_up = numbers(6, 2 * width, dtype=dtype) * 8
    gate_up[0, 0] = -300.0
    got = ops.silu_mul(gate_up)
    assert_close(got, TorchOps().silu_mul(gate_up.float()), dtype)


@both_dtypes
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((2, 1), 80), ((4, 2), 96), ((1, 1), 256)])
def test_rotate_and_store_writes_only_its_own_slots(
    ops: CpuOps, heads: tuple[int, int], head_dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    shape = HeadShape(heads[0], heads[1], head_dim)
    num_tokens, block_size = 11, 16
    qkv = numbers(num_tokens, (shape.num_heads + 2 * shape.num_kv_heads) * head_dim, dtype=dtype)
    angles = torch.rand(num_tokens, head_dim // 2) * 6
    place = torch.randperm(5 * block_size)[:num_tokens]
    slots = TokenSlots(torch.cat((angles.cos(), angles.sin()), 1), place // block_size, place % block_size)
    q_weight, k_weight = (numbers(head_dim, dtype=dtype, seed=seed) for seed in (3, 4))
    norms = HeadNorms(q_weight, k_weight, 1e-6) if has_norms else None
    wide = HeadNorms(q_weight.float(), k_weight.float(), 1e-6) if has_norms else None
    pages = torch.full((2, 5, shape.num_kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    want_pages = pages.float()
    q = ops.rotate_and_store(qkv, shape, norms, slots, pages[0], pages[1])
    want_q = TorchOps().rotate_and_store(qkv.float(), shape, wide, slots, want_pages[0], want_pages[1])
    assert_close(q, want_q, dtype)
    assert_close(pages, want_pages, dtype)


@both_dtypes
def test_bits_of_a_row_do_not_depend_on_the_others(ops: CpuOps, dtype: torch.dtype) -> None:
    x, weight = numbers(37, 579, dtype=dtype), numbers(579, dtype=dtype)
    normed, activated = ops.rms_norm(x, weight, 1e-5), ops.silu_mul(x[:, :578].contiguous())
    for row in (0, 5, 36):
        assert torch.equal(ops.rms_norm(x[row : row + 1].clone(), weight, 1e-5)[0], normed[row])
        assert torch.equal(ops.silu_mul(x[row : row + 1, :578].clone())[0], activated[row])


def test_arguments_that_do_not_fit_are_refused_by_name(ops: CpuOps) -> None:
    x = torch.zeros(4, 64)
    with pytest.raises(KernelArgumentError, match=r"weight has shape \[63\]; wanted \[64\]"):
        ops.rms_norm(x, torch.zeros(63), 1e-5)
    with pytest.raises(KernelArgumentError, match=r"weight is torch\.bfloat16"):
        ops.rms_norm(x, torch.zeros(64, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(KernelArgumentError, match="x has strides"):
        ops.rms_norm(torch.zeros(64, 4).T, torch.zeros(64), 1e-5)
    with pytest.raises(KernelArgumentError, match=r"residual has shape \[3, 64\]"):
        ops.add_rms_norm(x, torch.zeros(3, 64), torch.zeros(64), 1e-5)
    with pytest.raises(KernelArgumentError, match=r"gate_up is torch\.float16"):
        ops.silu_mul(x.half())
