"""Every kernel against its reference on fresh random shapes, then its share of the device's ceiling over a sweep."""

import random
from collections.abc import Callable, Iterator
from functools import partial

import torch

from deploy.bench.gpu.machine import Ceilings, Machine
from deploy.bench.gpu.report import Report
from gpu_worker.kernels.triton.activation import silu_mul, silu_mul_reference
from gpu_worker.kernels.triton.attention import paged_attention, paged_attention_reference
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode, paged_decode_reference
from gpu_worker.kernels.triton.int8_linear import int8_linear, int8_linear_reference
from gpu_worker.kernels.triton.norm import add_rms_norm, add_rms_norm_reference
from gpu_worker.kernels.triton.rope_kv_write import KvTarget, rope_kv_write, rope_kv_write_reference
from gpu_worker.kernels.triton.shapes import AttentionShape, DeviceClass, Tile, decode_tile, num_splits
from gpu_worker.loading.int8 import quantise_rows
from gpu_worker.model.ops import HeadShape, TokenSlots

BF16 = torch.bfloat16
_TOLERANCE = 1e-2
_CACHE_BYTES = 3 << 30
"""Pages that a sweep walks through, several times the largest L2."""


def make_kv(machine: Machine, shape: AttentionShape, kv_lens: list[int]) -> PagedKv:
    """Pages in random order; slots that no row owns are NaN."""
    pages_of = [-(-kv_len // shape.block_size) for kv_len in kv_lens]
    num_pages = sum(pages_of) + 1
    size = (num_pages, shape.num_kv_heads, shape.block_size, shape.head_dim)
    k, v = (torch.randn(size, device=machine.device, dtype=torch.float16).to(BF16) for _ in range(2))
    order = torch.randperm(num_pages - 1).tolist()
    tables = torch.full((len(kv_lens), max(pages_of)), num_pages - 1, dtype=torch.int32)
    for row, (count, kv_len) in enumerate(zip(pages_of, kv_lens, strict=True)):
        owned = [order.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(owned, dtype=torch.int32)
        held = kv_len - (count - 1) * shape.block_size
        for pages in (k, v):
            pages[owned[-1], :, held:] = float("nan")
    for pages in (k, v):
        pages[num_pages - 1] = float("nan")
    lens = torch.tensor(kv_lens, dtype=torch.int32, device=machine.device)
    return PagedKv(k, v, tables.to(machine.device), lens)


def check_kernels(machine: Machine, report: Report, seed: int) -> None:
    """Random shapes, new ones each run; the seed is reported so that a failure can be repeated."""
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    report.add("correct", seed=seed)
    for name, check in _cases(machine, chosen):
        error = check()
        if error < _TOLERANCE:
            report.add("correct", case=name, relative_error=error)
        else:
            report.fail("correct", f"{name}: relative error {error:.3g}")


def _cases(machine: Machine, chosen: random.Random) -> Iterator[tuple[str, Callable[[], float]]]:
    longest, rows, rounds = (60, 3, 1) if machine.is_dry else (3000, 33, 3)
    for head_dim in (64, 80, 96, 128, 256):
        for _ in range(rounds):
            group, num_kv_heads = chosen.choice((1, 3, 4, 8)), chosen.choice((1, 2, 8))
            if machine.is_dry:
                num_kv_heads = 1
            shape = AttentionShape(group * num_kv_heads, num_kv_heads, head_dim, chosen.choice((16, 32)))
            lens = [chosen.randint(1, longest) for _ in range(chosen.randint(1, rows))]
            window = chosen.choice((None, None, chosen.randint(1, longest)))
            yield f"decode {shape} rows={len(lens)} window={window}", partial(_decode, machine, shape, lens, window)
            counts = [min(kv_len, chosen.choice((1, chosen.randint(1, longest // 4)))) for kv_len in lens[:6]]
            name = f"attention {shape} tokens={counts} window={window}"
            yield name, partial(_attention, machine, shape, lens[:6], counts, window)
    for heads in (HeadShape(9, 3, 64), HeadShape(32, 8, 128))[: 1 if machine.is_dry else 2]:
        yield f"rope {heads}", partial(_rope, machine, heads)
    yield "add-rmsnorm", partial(_norm, machine)
    inputs, outputs = (96, 40) if machine.is_dry else (4096, 6144)
    for num_rows in (1, 17) if machine.is_dry else (1, 16, 50, chosen.randint(65, 600)):
        name = f"int8-linear {num_rows}x{inputs} to {outputs}"
        yield name, partial(_int8, machine, num_rows, inputs, outputs)
    yield "silu-mul", partial(_silu, machine)


def _decode(machine: Machine, shape: AttentionShape, lens: list[int], window: int | None) -> float:
    kv = make_kv(machine, shape, lens)
    q = torch.randn(len(lens), shape.num_heads, shape.head_dim, device=machine.device).to(BF16)
    workspace = SplitWorkspace.make(len(lens), shape, 4, machine.device)
    found = paged_decode(q, kv, workspace, softmax_scale=0.1, window=window)
    return relative_error(found, paged_decode_reference(q, kv, softmax_scale=0.1, window=window))


def _attention(
    machine: Machine, shape: AttentionShape, lens: list[int], counts: list[int], window: int | None
) -> float:
    kv = make_kv(machine, shape, lens)
    q = torch.randn(sum(counts), shape.num_heads, shape.head_dim, device=machine.device).to(BF16)
    cu_q = torch.tensor([0, *counts], device=machine.device).cumsum(0).int()
    found = paged_attention(q, kv, cu_q, softmax_scale=0.1, window=window)
    return relative_error(found, paged_attention_reference(q, kv, cu_q, softmax_scale=0.1, window=window))


def _rope(machine: Machine, heads: HeadShape) -> float:
    count, device = 20, machine.device
    qkv = torch.randn(count, (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim, device=device).to(BF16)
    places = torch.arange(count, device=device)
    slots = TokenSlots(torch.rand(count, heads.head_dim, device=device), places, places % 16)
    pages = [torch.zeros(count, heads.num_kv_heads, 16, heads.head_dim, device=device, dtype=BF16) for _ in range(4)]
    q = rope_kv_write(qkv, heads, None, slots, KvTarget(pages[0], pages[1]))
    wanted = rope_kv_write_reference(qkv, heads, None, slots, KvTarget(pages[2], pages[3]))
    return max(relative_error(q, wanted), relative_error(pages[0], pages[2]), relative_error(pages[1], pages[3]))


def _int8(machine: Machine, num_rows: int, inputs: int, outputs: int) -> float:
    held = quantise_rows(torch.randn(outputs, inputs, device=machine.device))
    x = torch.randn(num_rows, inputs, device=machine.device).to(BF16)
    bias = torch.randn(outputs, device=machine.device).to(BF16)
    return relative_error(
        int8_linear(x, held.codes, held.scale, bias), int8_linear_reference(x, held.codes, held.scale, bias)
    )


def _norm(machine: Machine) -> float:
    x, residual = (torch.randn(37, 4096, device=machine.device).to(BF16) for _ in range(2))
    weight, kept = torch.rand(4096, device=machine.device).to(BF16), residual.clone()
    found = add_rms_norm(x, residual, weight, 1e-5)
    return max(relative_error(found, add_rms_norm_reference(x, kept, weight, 1e-5)), relative_error(residual, kept))


def _silu(machine: Machine) -> float:
    gate_up = torch.randn(37, 2 * (96 if machine.is_dry else 14336), device=machine.device).to(BF16)
    return relative_error(silu_mul(gate_up), silu_mul_reference(gate_up))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over that of what is wanted."""
    error = (found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30)
    return float(error) if bool(error.isfinite()) else float("inf")


def sweep_decode(machine: Machine, ceilings: Ceilings, report: Report) -> None:
    """Decode attention: bytes of keys and values read over time, as a share of copy bandwidth; best tile and splits."""
    shape = AttentionShape(4, 1, 64, 16) if machine.is_dry else AttentionShape(32, 8, 128, 16)
    sizes = [(2, 40)] if machine.is_dry else [(1, 2048), (1, 16384), (16, 2048), (64, 2048), (64, 8192), (256, 2048)]
    for num_rows, kv_len in sizes:
        row_bytes = 2 * kv_len * shape.num_kv_heads * shape.head_dim * 2
        sets = 1 if machine.is_dry else max(1, min(8, _CACHE_BYTES // (num_rows * row_bytes)))
        caches = [make_kv(machine, shape, [kv_len] * num_rows) for _ in range(sets)]
        q = torch.randn(num_rows, shape.num_heads, shape.head_dim, device=machine.device).to(BF16)
        best: tuple[float, str] | None = None
        default = 0.0
        for splits, tile, is_default in _decode_candidates(machine, shape, num_rows, kv_len):
            workspace = SplitWorkspace.make(num_rows, shape, splits, machine.device)
            work = partial(_decode_all, q, caches, workspace, tile)
            seconds = machine.seconds(work) / sets
            default = seconds if is_default else default
            if best is None or seconds < best[0]:
                best = (
                    seconds,
                    f"splits={splits} block_n={tile.block_n} warps={tile.num_warps} stages={tile.num_stages}",
                )
        if best is not None:
            share = num_rows * row_bytes / best[0] / ceilings.copy_bytes_per_s
            default_share = num_rows * row_bytes / default / ceilings.copy_bytes_per_s if default else 0.0
            report.add(
                "decode", rows=num_rows, context=kv_len, best_us=best[0] * 1e6, best_share_of_copy=share,
                default_share_of_copy=default_share, best=best[1],
            )  # fmt: skip


def _decode_candidates(
    machine: Machine, shape: AttentionShape, num_rows: int, kv_len: int
) -> Iterator[tuple[int, Tile, bool]]:
    multiprocessors = 4 if machine.is_dry else torch.cuda.get_device_properties(machine.device).multi_processor_count
    planned = num_splits(num_rows, shape.num_kv_heads, kv_len, multiprocessors)
    default = decode_tile(shape, DeviceClass.of(machine.device))
    yield planned, default, True
    if machine.is_dry:
        return
    for splits in sorted({planned, max(1, planned // 2), min(32, planned * 2)}):
        for tile in (
            Tile(16, 32, 4, 3),
            Tile(16, 64, 4, 3),
            Tile(16, 64, 4, 4),
            Tile(16, 128, 4, 2),
            Tile(16, 128, 8, 3),
        ):
            yield splits, tile, False


def _decode_all(q: torch.Tensor, caches: list[PagedKv], workspace: SplitWorkspace, tile: Tile) -> None:
    for kv in caches:
        paged_decode(q, kv, workspace, softmax_scale=0.1, tile=tile)


def sweep_others(machine: Machine, ceilings: Ceilings, report: Report) -> None:
    """Prefill attention against the matrix ceiling; norms and activations against copy bandwidth."""
    shape = AttentionShape(4, 1, 64, 16) if machine.is_dry else AttentionShape(32, 8, 128, 16)
    for rows, count, context in [(1, 20, 0)] if machine.is_dry else [(1, 2048, 0), (4, 512, 2048), (1, 8192, 0)]:
        kv = make_kv(machine, shape, [count + context] * rows)
        q = torch.randn(rows * count, shape.num_heads, shape.head_dim, device=machine.device).to(BF16)
        cu_q = torch.arange(rows + 1, device=machine.device, dtype=torch.int32) * count
        seconds = machine.seconds(partial(paged_attention, q, kv, cu_q, softmax_scale=0.1))
        flops = 4 * rows * shape.num_heads * shape.head_dim * (count * context + count * (count + 1) / 2)
        share = flops / seconds / ceilings.bf16_flop_per_s
        report.add("prefill", rows=rows, tokens=count, context=context, us=seconds * 1e6, share_of_matmul=share)
    tokens = 4 if machine.is_dry else 8192
    x, residual = (torch.randn(tokens, 4096, device=machine.device).to(BF16) for _ in range(2))
    weight = torch.ones(4096, device=machine.device, dtype=BF16)
    seconds = machine.seconds(partial(add_rms_norm, x, residual, weight, 1e-5))
    share = 4 * x.numel() * 2 / seconds / ceilings.copy_bytes_per_s
    report.add("elementwise", kernel="add-rmsnorm", us=seconds * 1e6, share_of_copy=share)
    gate_up = torch.randn(tokens, 2 * 14336, device=machine.device).to(BF16)
    seconds = machine.seconds(partial(silu_mul, gate_up))
    share = 1.5 * gate_up.numel() * 2 / seconds / ceilings.copy_bytes_per_s
    report.add("elementwise", kernel="silu-mul", us=seconds * 1e6, share_of_copy=share)
    _sweep_int8(machine, ceilings, report)


def _sweep_int8(machine: Machine, ceilings: Ceilings, report: Report) -> None:
    """Products of a decode step in 8 bits beside those in bf16: bytes of weights over time, as a share of copying."""
    outputs, inputs = (48, 64) if machine.is_dry else (28672, 4096)
    dense = torch.randn(outputs, inputs, device=machine.device).to(BF16)
    held = quantise_rows(dense)
    for rows in (2,) if machine.is_dry else (1, 16, 64, 256):
        x = torch.randn(rows, inputs, device=machine.device).to(BF16)
        seconds = machine.seconds(partial(int8_linear, x, held.codes, held.scale))
        bf16 = machine.seconds(partial(torch.nn.functional.linear, x, dense))
        share = held.codes.nbytes / seconds / ceilings.copy_bytes_per_s
        report.add("int8", rows=rows, us=seconds * 1e6, bf16_us=bf16 * 1e6, share_of_copy=share)
