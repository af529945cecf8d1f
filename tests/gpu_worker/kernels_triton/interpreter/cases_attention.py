"""Attention kernels against their float64 reference, over shapes that a server meets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from gpu_worker.kernels.triton.attention import paged_attention, paged_attention_reference
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode, paged_decode_reference
from gpu_worker.kernels.triton.shapes import AttentionShape, Tile
from tests.gpu_worker.kernels_triton.interpreter.pages import Heads, poisoned_kv, relative_error

BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCE = {BF16: 6e-3, FP16: 8e-4}


@dataclass(frozen=True)
class Step:
    """Rows of one step: tokens of each and its length with them. Tokens before and after belong to none of them."""

    num_tokens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    leading: int = 0
    padding: int = 0


MIXED = Step(num_tokens=(1, 6, 0, 1, 18), kv_lens=(33, 6, 0, 1, 30), padding=3)


def attention_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and check of each case of the unified kernel; a check returns the error or raises."""
    grid = [
        (Heads(3, 3, 64), BF16, MIXED, None, False, Tile(16, 16, 4, 2)),
        (Heads(1, 2, 80), FP16, Step((17, 4), (17, 35)), None, False, Tile(16, 32, 4, 2)),
        (Heads(4, 2, 96, 32), BF16, Step((9, 1), (41, 64), leading=13), None, False, Tile(32, 16, 4, 2)),
        (Heads(8, 1, 128), BF16, Step((5, 3), (16, 40), padding=1), None, False, Tile(16, 32, 4, 2)),
        (Heads(4, 1, 256), FP16, Step((6,), (22,)), None, False, Tile(16, 16, 4, 2)),
        (Heads(4, 2, 64), BF16, Step((20, 1, 7), (44, 37, 7)), 9, False, Tile(16, 16, 4, 2)),
        (Heads(3, 1, 64, 32), BF16, Step((5, 2), (70, 33)), 40, False, Tile(16, 16, 4, 2)),
        (Heads(3, 2, 64), BF16, Step((5, 1, 19), (5, 33, 40)), None, True, Tile(16, 16, 4, 2)),
        (Heads(3, 1, 128), BF16, Step((50, 1), (50, 90)), None, False, None),
    ]
    for heads, dtype, step, window, is_fp8, tile in grid:
        name = f"attention {_name(heads, dtype, window, is_fp8)} tokens {step.num_tokens} of {step.kv_lens}"
        yield name, partial(_check_attention, heads, dtype, step, window, is_fp8, tile)


def decode_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """The same of the split-KV kernel and its reduction."""
    grid = [
        (Heads(3, 3, 64), BF16, (1, 17, 40, 63, 0), None, False, 4, Tile(16, 16, 4, 2)),
        (Heads(1, 2, 80), FP16, (33, 16), None, False, 2, Tile(16, 16, 4, 2)),
        (Heads(4, 2, 96, 32), BF16, (64, 5), None, False, 1, Tile(16, 32, 4, 2)),
        (Heads(8, 1, 128), BF16, (130, 1, 48), None, False, 8, Tile(16, 16, 4, 2)),
        (Heads(4, 1, 256), FP16, (50, 0), None, False, 2, Tile(16, 16, 4, 2)),
        (Heads(4, 1, 64), BF16, (90, 12, 1, 0), 37, False, 4, Tile(16, 16, 4, 2)),
        (Heads(1, 1, 64, 32), BF16, (70, 0), 5, False, 1, Tile(16, 16, 4, 2)),
        (Heads(3, 1, 64), BF16, (40, 7), None, True, 2, Tile(16, 32, 4, 2)),
        (Heads(4, 1, 128), BF16, (150,), None, False, 2, None),
    ]
    for heads, dtype, kv_lens, window, is_fp8, splits, tile in grid:
        name = f"decode {_name(heads, dtype, window, is_fp8)} lengths {kv_lens} in {splits} splits"
        yield name, partial(_check_decode, heads, dtype, kv_lens, window, is_fp8, splits, tile)


def _name(heads: Heads, dtype: torch.dtype, window: int | None, is_fp8: bool) -> str:
    kind = str(dtype).removeprefix("torch.") + ("+fp8" if is_fp8 else "")
    text = f"d{heads.head_dim} g{heads.group} bs{heads.block_size} {kind}"
    return text if window is None else f"{text} window {window}"


def _queries(num_tokens: int, heads: Heads, dtype: torch.dtype) -> torch.Tensor:
    """With room between tokens, as a view into packed query, key and value heads has."""
    wide = torch.randn(num_tokens, heads.group * heads.num_kv_heads + 2, heads.head_dim)
    return wide.to(dtype)[:, :-2]


def _check_attention(
    heads: Heads, dtype: torch.dtype, step: Step, window: int | None, is_fp8: bool, tile: Tile | None
) -> float:
    kv = poisoned_kv(heads, step.kv_lens, dtype, is_fp8=is_fp8, by_row_id=step.padding > 0)
    total = sum(step.num_tokens)
    q = _queries(step.leading + total + step.padding, heads, dtype)
    cu_q = torch.tensor([step.leading, *step.num_tokens]).cumsum(0).int()
    out = torch.full(q.shape, 7.0, dtype=dtype)
    scale = heads.head_dim**-0.5
    paged_attention(q, kv, cu_q, softmax_scale=scale, window=window, out=out, tile=tile)
    wanted = paged_attention_reference(q, kv, cu_q, softmax_scale=scale, window=window)
    ours = slice(step.leading, step.leading + total)
    is_foreign = torch.ones(len(q), dtype=torch.bool)
    is_foreign[ours] = False
    assert bool((out[is_foreign] == 7.0).all()), "tokens of no row were written"
    return _bounded(relative_error(out[ours], wanted[ours]), TOLERANCE[dtype])


def _check_decode(
    heads: Heads,
    dtype: torch.dtype,
    kv_lens: tuple[int, ...],
    window: int | None,
    is_fp8: bool,
    splits: int,
    tile: Tile | None,
) -> float:
    kv = poisoned_kv(heads, kv_lens, dtype, is_fp8=is_fp8, by_row_id=0 in kv_lens)
    q = _queries(len(kv_lens), heads, dtype)
    shape = AttentionShape(heads.group * heads.num_kv_heads, heads.num_kv_heads, heads.head_dim, heads.block_size)
    workspace = SplitWorkspace.make(len(kv_lens) + 1, shape, splits, q.device)
    workspace.part.fill_(float("nan"))
    workspace.lse.fill_(float("nan"))
    out = torch.full(q.shape, float("nan"), dtype=dtype)
    scale = heads.head_dim**-0.5
    paged_decode(q, kv, workspace, softmax_scale=scale, window=window, out=out, tile=tile)
    live = [row for row, kv_len in enumerate(kv_lens) if kv_len]
    empty = [row for row, kv_len in enumerate(kv_lens) if not kv_len]
    assert bool((out[empty] == 0).all()), "a row of length 0 did not give zeros"
    row_ids = None if kv.row_ids is None else kv.row_ids[live]
    tables = kv.block_tables[live] if row_ids is None else kv.block_tables
    held = replace(kv, block_tables=tables, kv_lens=kv.kv_lens[live], row_ids=row_ids)
    wanted = paged_decode_reference(q[live], held, softmax_scale=scale, window=window)
    return _bounded(relative_error(out[live], wanted), TOLERANCE[dtype])


def _bounded(error: float, tolerance: float) -> float:
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"
    return error
