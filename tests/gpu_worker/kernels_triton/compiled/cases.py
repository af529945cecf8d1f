"""Calls that make every kernel and every tile configuration, on the meta device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from gpu_worker.kernels.triton.activation import silu_mul
from gpu_worker.kernels.triton.attention import paged_attention
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.backend import TritonOps
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode
from gpu_worker.kernels.triton.int8_linear import int8_linear
from gpu_worker.kernels.triton.norm import add_rms_norm, rms_norm
from gpu_worker.kernels.triton.plan import StepRows, StepTokens, apply_plan, count_tokens, gather_step
from gpu_worker.kernels.triton.rope_kv_write import KvTarget, rope_kv_write
from gpu_worker.kernels.triton.row_state import RowState, RowStateShape
from gpu_worker.kernels.triton.sampling import SampledRows, sample
from gpu_worker.kernels.triton.shapes import FP8, AttentionShape, DeviceClass, decode_tile, prefill_tile
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots
from tests.gpu_worker.kernels_triton.compiled.hidden_syncs import make_step, run_decode, run_mixed

META = torch.device("meta")
BF16, FP16 = torch.bfloat16, torch.float16
SERVERS = (DeviceClass.AMPERE, DeviceClass.HOPPER, DeviceClass.BLACKWELL)
FP8_SERVERS = (DeviceClass.HOPPER, DeviceClass.BLACKWELL)


@dataclass(frozen=True)
class Case:
    """Something that launches kernels, and the devices to compile them for."""

    name: str
    device_classes: tuple[DeviceClass, ...]
    call: Callable[[DeviceClass], object]


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor without contents."""
    return torch.empty(shape, dtype=dtype, device=META)


def all_cases() -> list[Case]:
    """Names hold no space, so that the table can be searched by column."""
    return [*_attention_cases(), *_operation_cases(), *_row_state_cases()]


def _attention_cases() -> Iterator[Case]:
    everywhere = (*SERVERS, DeviceClass.SMALL)
    # A group that is no power of two takes the most registers.
    for head_dim, group in ((64, 3), (128, 7), (256, 3)):
        yield from _both(f"d{head_dim}-g{group}", AttentionShape(2 * group, 2, head_dim, 16), everywhere)
    # Sizes 80 and 96 share the tile of 128; sm_80 has the fewest registers to spare.
    tightest, hopper = (DeviceClass.AMPERE,), (DeviceClass.HOPPER,)
    yield from _both("d80-g4", AttentionShape(8, 2, 80, 16), hopper)
    yield from _both("d96-g3-bs32", AttentionShape(9, 3, 96, 32), tightest)
    yield from _both("d64-g1-fp16", AttentionShape(4, 4, 64, 16), tightest, dtype=FP16)
    yield from _both("d128-g8-window", AttentionShape(32, 4, 128, 16), SERVERS, window=4096)
    yield from _both("d64-fp8", AttentionShape(8, 2, 64, 16), hopper, is_fp8=True)
    yield from _both("d128-fp8", AttentionShape(8, 2, 128, 16), FP8_SERVERS, is_fp8=True)
    yield from _both("d256-fp8", AttentionShape(8, 2, 256, 16), FP8_SERVERS, is_fp8=True)


def _both(
    name: str,
    shape: AttentionShape,
    device_classes: tuple[DeviceClass, ...],
    *,
    dtype: torch.dtype = BF16,
    window: int | None = None,
    is_fp8: bool = False,
) -> Iterator[Case]:
    yield Case(f"attention-{name}", device_classes, partial(_prefill, shape, dtype, window, is_fp8))
    yield Case(f"decode-{name}", device_classes, partial(_decode, shape, dtype, window, is_fp8))


def _kv(shape: AttentionShape, dtype: torch.dtype, is_fp8: bool, num_rows: int) -> PagedKv:
    pages = meta(100, shape.num_kv_heads, shape.block_size, shape.head_dim, dtype=FP8 if is_fp8 else dtype)
    scale = meta(shape.num_kv_heads, dtype=torch.float32) if is_fp8 else None
    tables, kv_lens = meta(256, 512, dtype=torch.int32), meta(num_rows, dtype=torch.int32)
    row_ids = meta(num_rows, dtype=torch.int32)
    return PagedKv(pages, pages, tables, kv_lens, row_ids, scale, scale)


def _prefill(
    shape: AttentionShape, dtype: torch.dtype, window: int | None, is_fp8: bool, device_class: DeviceClass
) -> None:
    q = meta(1000, shape.num_heads, shape.head_dim, dtype=dtype)
    cu_q = meta(6, dtype=torch.int32)
    tile = prefill_tile(shape, device_class)
    paged_attention(q, _kv(shape, dtype, is_fp8, 5), cu_q, softmax_scale=0.1, window=window, tile=tile)


def _decode(
    shape: AttentionShape, dtype: torch.dtype, window: int | None, is_fp8: bool, device_class: DeviceClass
) -> None:
    q = meta(64, shape.num_heads, shape.head_dim, dtype=dtype)
    # One split writes the output itself; the same code with a reduction is the larger one.
    splits = 1 if shape.head_dim == 80 else 8
    workspace = SplitWorkspace.make(64, shape, splits, META)
    tile = decode_tile(shape, device_class)
    paged_decode(q, _kv(shape, dtype, is_fp8, 64), workspace, softmax_scale=0.1, window=window, tile=tile)


def _operation_cases() -> Iterator[Case]:
    heads = [
        (HeadShape(9, 3, 64), False, False),
        (HeadShape(32, 8, 128), True, False),
        (HeadShape(64, 8, 80), False, False),
        (HeadShape(8, 1, 256), False, False),
        (HeadShape(32, 8, 128), False, True),
    ]
    for shape, has_norm, is_fp8 in heads:
        name = f"rope-{shape.num_heads}/{shape.num_kv_heads}x{shape.head_dim}{'-norm' * has_norm}{'-fp8' * is_fp8}"
        yield Case(name, FP8_SERVERS if is_fp8 else SERVERS, partial(_rope, shape, has_norm, is_fp8))
    for size in (576, 4096, 16384):
        yield Case(f"add-rmsnorm-{size}", SERVERS, partial(_norm, size))
    yield Case("silu-mul-14336", SERVERS, lambda _: silu_mul(meta(64, 2 * 14336)))
    for num_rows in (16, 64, 2048):
        yield Case(f"int8-linear-{num_rows}", (*SERVERS, DeviceClass.SMALL), partial(_int8, num_rows))


def _int8(num_rows: int, _: DeviceClass) -> None:
    codes, scale = meta(14336, 4096, dtype=torch.int8), meta(14336, dtype=torch.float32)
    int8_linear(meta(num_rows, 4096), codes, scale, meta(14336) if num_rows == 64 else None)


def _norm(size: int, _: DeviceClass) -> None:
    add_rms_norm(meta(64, size), meta(64, size), meta(size), 1e-5)
    rms_norm(meta(64, size), meta(size), 1e-5)


def _rope(heads: HeadShape, has_norm: bool, is_fp8: bool, _: DeviceClass) -> None:
    num_tokens = 64
    qkv = meta(num_tokens, (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim)
    places = meta(num_tokens, dtype=torch.int64)
    slots = TokenSlots(meta(num_tokens, heads.head_dim, dtype=torch.float32), places, places)
    norms = HeadNorms(meta(heads.head_dim), meta(heads.head_dim), 1e-6) if has_norm else None
    pages = meta(100, heads.num_kv_heads, 16, heads.head_dim, dtype=FP8 if is_fp8 else BF16)
    scale = meta(heads.num_kv_heads, dtype=torch.float32) if is_fp8 else None
    rope_kv_write(qkv, heads, norms, slots, KvTarget(pages, pages, scale, scale))


def _row_state_cases() -> Iterator[Case]:
    yield Case("sampling-128256", SERVERS, partial(_sample, 128256))
    yield Case("plan", SERVERS, _plan)
    yield Case("step", (DeviceClass.HOPPER,), _step)


def _state(vocab_size: int) -> RowState:
    return RowState(RowStateShape(256, 8193, 512, 16, vocab_size), META)


def _sample(vocab_size: int, _: DeviceClass) -> None:
    logits, rows = meta(64, vocab_size, dtype=torch.float32), meta(64, dtype=torch.int32)
    sample(logits, rows, _state(vocab_size), SampledRows.make(64, vocab_size, 20, META))


def _plan(_: DeviceClass) -> None:
    state = _state(128256)
    apply_plan(meta(1 << 14, dtype=torch.int32), state, 100, 5000)
    count_tokens(meta(3, dtype=torch.int32), state, 5000)
    for longest in (1, 600):
        step = StepRows(meta(64, dtype=torch.int32), meta(65, dtype=torch.int32), meta(64, dtype=torch.int32))
        gather_step(step, state, 16, longest, StepTokens.make(640, 64, META))


def _step(_: DeviceClass) -> None:
    """Everything that a decode step and a mixed one launch, with the arguments that the runner gives."""
    with torch.inference_mode():
        step = make_step(TritonOps())
        run_decode(step)
        run_mixed(step)
