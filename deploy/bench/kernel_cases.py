"""The cases of `deploy.bench.kernels`: SmolLM2-135M's shapes, once for every layer, weights and pages of each layer its
own, so that they come from memory as in a step.

Weights lie where the worker has them, in the huge pages of `WeightMemory`. Products follow each other at once, as
within the worker's one call a step: with tensors made and looked at before each, those of one row took a third longer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from gpu_worker.host_memory import advise_huge_pages
from gpu_worker.kernels.cpu.backend import CpuKernels
from gpu_worker.kernels.cpu.greedy import greedy_rows
from gpu_worker.kernels.cpu.linear import LinearKernels, PackedLinear, Product, WeightKind
from gpu_worker.model.attention import AttentionLayout, Chunk
from gpu_worker.model.ops import HeadShape, TokenSlots

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 576, 1536, 30, 49_152
HEADS, BLOCK_SIZE = HeadShape(num_heads=9, num_kv_heads=3, head_dim=64), 16
QKV = (HEADS.num_heads + 2 * HEADS.num_kv_heads) * HEADS.head_dim
LINEARS = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
ROWS = (1, 8, 32, 256)
DECODES = ((1, 192), (8, 192), (32, 192), (32, 512))
PREFILLS = (256, 1024)
_PEAKS = {WeightKind.BFLOAT16: "bfloat16_gflop_s", WeightKind.FLOAT32: "float32_gflop_s"}


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape."""

    name: str
    run: Callable[[], object]
    num_bytes: float
    """That must move: weights, or keys and values, or rows in and out."""
    operations: float
    peak: str
    """Field of `Ceilings` that its operations are compared with."""


def cases(kernels: CpuKernels, only: str = "") -> Iterator[Case]:
    """Those whose name holds `only`. A generator: one kind of weights is in memory at a time."""
    for kind in WeightKind:
        names = {rows: f"linears {kind.name.lower()} rows={rows}" for rows in ROWS}
        if any(only in name for name in names.values()):
            yield from (each for each in _linear_cases(kernels, kind, names) if only in each.name)
    yield from (each for each in _attention_cases(kernels) if only in each.name)
    yield from (each for each in _small_cases(kernels) if only in each.name)


def _linear_cases(kernels: CpuKernels, kind: WeightKind, names: dict[int, str]) -> Iterator[Case]:
    packer = LinearKernels(kernels.library, kernels.team)
    linears = [linear for shape in LINEARS for linear in _pack_layers(packer, kind, *shape)]
    num_weights = LAYERS * sum(outputs * inputs for outputs, inputs in LINEARS)
    dtype = kind.input_dtype or torch.bfloat16
    for rows, name in names.items():
        inputs = {width: torch.randn(rows, width).to(dtype) for width in (HIDDEN, INTERMEDIATE)}
        products = [linear.prepare(inputs[linear.in_features], dtype) for linear in linears]

        def run(products: list[Product] = products) -> None:
            for product in products:
                product.run()

        yield Case(name, run, packer.memory.used_bytes, 2.0 * rows * num_weights, _PEAKS.get(kind, "int8_gop_s"))


def _pack_layers(packer: LinearKernels, kind: WeightKind, outputs: int, inputs: int) -> list[PackedLinear]:
    weight = torch.randn(outputs, inputs) * 0.02
    if kind.block_bytes:
        blocks = torch.from_numpy(quantize(weight.numpy(), GGMLQuantizationType[kind.name]))
        return [packer.pack_blocks(blocks, kind) for _ in range(LAYERS)]
    dense = weight.to(kind.input_dtype or torch.float32)
    return [packer.pack(dense, None, kind) for _ in range(LAYERS)]


def _attention_cases(kernels: CpuKernels) -> Iterator[Case]:
    for rows, length in DECODES:
        lens = np.full(rows, length, np.int64)
        yield _attention_case(kernels, f"attention decode {rows} x {length}", rows, length, lens, ())
    for length in PREFILLS:
        chunks = (Chunk(0, length, length),)
        yield _attention_case(kernels, f"attention prefill {length}", 1, length, np.zeros(0, np.int64), chunks)


def _attention_case(
    kernels: CpuKernels,
    name: str,
    rows: int,
    length: int,
    lens: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
    chunks: tuple[Chunk, ...],
) -> Case:
    pages_each = -(-length // BLOCK_SIZE)
    shape = (LAYERS, 2, rows * pages_each, HEADS.num_kv_heads, BLOCK_SIZE, HEADS.head_dim)
    pages = torch.empty(shape, dtype=torch.bfloat16)
    advise_huge_pages(pages.data_ptr(), pages.nbytes)  # as the worker does for its cache
    pages.copy_(torch.randn(shape[1:]))
    tables = torch.randperm(rows * pages_each).int().view(rows, pages_each)
    step = kernels.attention.prepare(AttentionLayout(tables, lens, chunks))
    num_tokens = rows if not chunks else length
    q = torch.randn(num_tokens, HEADS.num_heads, HEADS.head_dim).to(torch.bfloat16)

    def run() -> None:
        for layer in pages:
            step.attend(q, layer[0], layer[1], None)

    # A token meets every key up to itself: half of them on average in a prefill.
    num_scores = rows * length if not chunks else length * (length + 1) / 2
    operations = 4.0 * LAYERS * HEADS.num_heads * HEADS.head_dim * num_scores
    kv_bytes = 4.0 * LAYERS * rows * length * HEADS.num_kv_heads * HEADS.head_dim
    return Case(name, run, kv_bytes, operations, "bfloat16_gflop_s")


def _small_cases(kernels: CpuKernels) -> Iterator[Case]:
    ops, weight = kernels.ops, torch.ones(HIDDEN, dtype=torch.bfloat16)
    for rows in (1, 32, 256):
        x, residual, gate_up = (
            torch.randn(rows, width).to(torch.bfloat16) for width in (HIDDEN, HIDDEN, 2 * INTERMEDIATE)
        )
        qkv = torch.randn(rows, QKV).to(torch.bfloat16)
        pages = torch.zeros(2, -(-rows // BLOCK_SIZE), HEADS.num_kv_heads, BLOCK_SIZE, HEADS.head_dim).bfloat16()
        places = torch.arange(rows)
        slots = TokenSlots(torch.randn(rows, HEADS.head_dim), places // BLOCK_SIZE, places % BLOCK_SIZE)
        actions: dict[str, tuple[Callable[[], object], int]] = {
            "add + RMS norm": (partial(ops.add_rms_norm, x, residual, weight, 1e-5), 8 * HIDDEN),
            "SiLU * mul": (partial(ops.silu_mul, gate_up), 6 * INTERMEDIATE),
            "rotary + KV write": (partial(ops.rotate_and_store, qkv, HEADS, None, slots, pages[0], pages[1]), 4 * QKV),
        }
        for name, (action, row_bytes) in actions.items():
            yield Case(f"{name} rows={rows}", _layered(action), LAYERS * rows * row_bytes, 0.0, "float32_gflop_s")
        logits = torch.randn(rows, VOCABULARY)
        yield Case(
            f"greedy rows={rows}",
            partial(greedy_rows, kernels.library, kernels.team, logits),
            4 * rows * VOCABULARY,
            0.0,
            "float32_gflop_s",
        )


def _layered(action: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(LAYERS):
            action()

    return run
