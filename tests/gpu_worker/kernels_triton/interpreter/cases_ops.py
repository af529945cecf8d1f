"""RoPE + KV write, norms and SiLU·mul against the model's own reference operations."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from gpu_worker.kernels.triton.activation import silu_mul, silu_mul_reference
from gpu_worker.kernels.triton.int8_linear import LinearTile, int8_linear, int8_linear_reference
from gpu_worker.kernels.triton.norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from gpu_worker.kernels.triton.rope_kv_write import KvTarget, rope_kv_write, rope_kv_write_reference
from gpu_worker.loading.int8 import quantise_rows
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots
from tests.gpu_worker.kernels_triton.interpreter.pages import FP8, relative_error

BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCE = {BF16: 4e-3, FP16: 5e-4}
NUM_PAGES = 5


def ops_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and check of each case; a check returns the largest error or raises."""
    rope_grid = [
        (HeadShape(9, 3, 64), 16, BF16, False, False),
        (HeadShape(2, 2, 80), 16, FP16, False, False),
        (HeadShape(4, 1, 96), 32, BF16, True, False),
        (HeadShape(8, 1, 128), 16, BF16, True, False),
        (HeadShape(4, 1, 256), 16, FP16, False, False),
        (HeadShape(6, 2, 64), 16, BF16, False, True),
    ]
    for heads, block_size, dtype, has_norm, is_fp8 in rope_grid:
        kind = f"{heads.num_heads}/{heads.num_kv_heads}x{heads.head_dim} bs{block_size} {dtype}"
        name = f"rope + KV write {kind}{' head norms' if has_norm else ''}{' fp8' if is_fp8 else ''}"
        yield name, partial(_check_rope, heads, block_size, dtype, has_norm, is_fp8)
    for num_rows, size, dtype in ((5, 576, BF16), (1, 64, FP16), (2, 5120, BF16)):
        yield f"add + RMSNorm {num_rows}x{size} {dtype}", partial(_check_add_norm, num_rows, size, dtype)
        yield f"RMSNorm {num_rows}x{size} {dtype}", partial(_check_norm, num_rows, size, dtype)
    for num_rows, size, dtype in ((3, 1536, BF16), (2, 40, FP16)):
        yield f"SiLU·mul {num_rows}x{size} {dtype}", partial(_check_silu_mul, num_rows, size, dtype)


def int8_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """The same of products with weights in 8 bits."""
    for num_rows, inputs, outputs, dtype, has_bias, tile in (
        (3, 80, 40, BF16, True, None),
        (17, 96, 33, FP16, False, LinearTile(16, 16, 32, 4, 2)),
        (20, 200, 70, BF16, False, None),
    ):
        name = f"int8 linear {num_rows}x{inputs} to {outputs} {dtype}{' bias' if has_bias else ''}"
        yield name, partial(_check_int8, num_rows, inputs, outputs, dtype, has_bias, tile)


def _check_int8(
    num_rows: int, inputs: int, outputs: int, dtype: torch.dtype, has_bias: bool, tile: LinearTile | None
) -> float:
    weight = torch.randn(outputs, inputs)
    weight[1] = 0
    held = quantise_rows(weight)
    # What lies past a row's inputs is not a number: a tile that reads it shows.
    wide = torch.full((num_rows, inputs + 64), float("nan"), dtype=dtype)
    x = wide[:, :inputs].copy_(torch.randn(num_rows, inputs))
    bias = torch.randn(outputs).to(dtype) if has_bias else None
    found = int8_linear(x, held.codes, held.scale, bias, tile)
    return _bounded(relative_error(found, int8_linear_reference(x, held.codes, held.scale, bias)), TOLERANCE[dtype])


def _check_rope(heads: HeadShape, block_size: int, dtype: torch.dtype, has_norm: bool, is_fp8: bool) -> float:
    num_tokens = 6
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    # Room between tokens, which a view into something wider has.
    qkv = torch.randn(num_tokens, width + 16).to(dtype)[:, :width]
    angles = torch.rand(num_tokens, heads.head_dim // 2) * 6
    # The last token is padding: it names no block.
    blocks = torch.tensor([4, 1, 1, 0, 3, -1])
    offsets = torch.tensor([0, block_size - 1, 3, 5, 1, 0])
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    norms = None
    if has_norm:
        q_weight, k_weight = (torch.rand(2, heads.head_dim) + 0.5).to(dtype)
        norms = HeadNorms(q_weight, k_weight, 1e-6)
    shape = (NUM_PAGES, heads.num_kv_heads, block_size, heads.head_dim)
    scale = torch.rand(2, heads.num_kv_heads) + 0.5 if is_fp8 else (None, None)
    found, wanted = (
        KvTarget(*(torch.full(shape, 3.0).to(FP8 if is_fp8 else dtype) for _ in range(2)), *scale) for _ in range(2)
    )
    q = rope_kv_write(qkv, heads, norms, TokenSlots(cos_sin, blocks, offsets), found)
    live = TokenSlots(cos_sin[:-1], blocks[:-1], offsets[:-1])
    q_wanted = rope_kv_write_reference(qkv[:-1], heads, norms, live, wanted)
    errors = [relative_error(q[:-1], q_wanted)]
    for mine, theirs in ((found.k_pages, wanted.k_pages), (found.v_pages, wanted.v_pages)):
        errors.append(relative_error(mine.float(), theirs.float()))
    return _bounded(max(errors), TOLERANCE[dtype])


def _check_add_norm(num_rows: int, size: int, dtype: torch.dtype) -> float:
    x, residual = (torch.randn(num_rows, size).to(dtype) for _ in range(2))
    weight = (torch.rand(size) + 0.5).to(dtype)
    residual_wanted = residual.clone()
    found = add_rms_norm(x, residual, weight, 1e-5)
    wanted = add_rms_norm_reference(x, residual_wanted, weight, 1e-5)
    assert torch.equal(residual, residual_wanted), "the residual is not the rounded sum"
    return _bounded(relative_error(found, wanted), TOLERANCE[dtype])


def _check_norm(num_rows: int, size: int, dtype: torch.dtype) -> float:
    x = torch.randn(num_rows, size).to(dtype)
    weight = (torch.rand(size) + 0.5).to(dtype)
    found, wanted = rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)
    return _bounded(relative_error(found, wanted), TOLERANCE[dtype])


def _check_silu_mul(num_rows: int, size: int, dtype: torch.dtype) -> float:
    gate_up = (torch.randn(num_rows, 2 * size) * 3).to(dtype)
    return _bounded(relative_error(silu_mul(gate_up), silu_mul_reference(gate_up)), TOLERANCE[dtype])


def _bounded(error: float, tolerance: float) -> float:
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"
    return error
