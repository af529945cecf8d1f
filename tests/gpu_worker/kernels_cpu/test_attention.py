"""Native paged attention against the torch reference, and the same bits however a row's tokens are cut."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError
from gpu_worker.kernels.cpu.attention import CpuAttention
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.attention import AttentionLayout, Chunk
from gpu_worker.model.torch_attention import TorchAttention

TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float32: 2e-5}
SHAPES = [  # (heads, KV heads), head size, block size
    ((6, 2), 32, 16),
    ((3, 3), 64, 16),
    ((9, 3), 64, 16),
    ((8, 2), 80, 32),
    ((8, 1), 96, 16),
    ((6, 2), 128, 32),
    ((4, 1), 256, 16),
]
# (num_tokens, kv_len): around pages (16, 32) and around the splits of 256 keys.
DECODES = [(1, n) for n in (1, 2, 15, 16, 17, 31, 33, 255, 256, 257, 513, 700)]
CHUNKS = [(3, 3), (2, 300), (40, 40), (17, 273), (70, 600)]

both_dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])


MakeBatch = Callable[..., Any]


def reference(batch: Any, window: int | None) -> torch.Tensor:
    backend = TorchAttention(batch.k_pages.shape[1], batch.k_pages.shape[2], batch.k_pages.shape[0])
    k, v = batch.k_pages.float(), batch.v_pages.float()
    return backend.prepare(batch.layout).attend(batch.q.float(), k, v, window)


@both_dtypes
@pytest.mark.parametrize(("heads", "head_dim", "block_size"), SHAPES)
def test_matches_the_reference_while_all_free_memory_is_nan(
    library: Library,
    team: ThreadTeam,
    make_batch: MakeBatch,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    batch = make_batch(DECODES + CHUNKS, heads, head_dim, block_size, dtype)
    for window in (None, 37):
        got = CpuAttention(library, team).prepare(batch.layout).attend(batch.q, batch.k_pages, batch.v_pages, window)
        want = reference(batch, window)
        torch.testing.assert_close(got.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@both_dtypes
@pytest.mark.parametrize("cuts", [[1] * 40, [13, 27], [39, 1], [1, 16, 23]], ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_bits_do_not_depend_on_the_cut_or_on_company(
    library: Library, team: ThreadTeam, make_batch: MakeBatch, cuts: list[int], window: int | None, dtype: torch.dtype
) -> None:
    """A row's last 40 tokens in one chunk among other rows, then alone in pieces."""
    length = 290
    batch = make_batch([(1, 9), (1, 300), (40, length), (5, 5)], (9, 3), 64, 16, dtype)
    backend = CpuAttention(library, team)
    whole = backend.prepare(batch.layout).attend(batch.q, batch.k_pages, batch.v_pages, window)[2:42]
    table = batch.layout.block_tables[2:3]
    done = 0
    for cut in cuts:
        kv_len = length - 40 + done + cut
        layout = AttentionLayout(table, batch.layout.decode_kv_lens[:0], (Chunk(0, cut, kv_len),))
        q = batch.q[2 + done : 2 + done + cut]
        piece = backend.prepare(layout).attend(q, batch.k_pages, batch.v_pages, window)
        assert torch.equal(piece, whole[done : done + cut])
        done += cut


def test_queries_may_be_a_view_of_packed_rows(library: Library, team: ThreadTeam, make_batch: MakeBatch) -> None:
    batch = make_batch([(1, 20), (6, 30)], (4, 2), 64, 16, torch.bfloat16)
    packed = torch.full((7, 8 * 64), float("nan"), dtype=torch.bfloat16)
    packed[:, : 4 * 64] = batch.q.view(7, -1)
    step = CpuAttention(library, team).prepare(batch.layout)
    view = packed.view(7, 8, 64)[:, :4]
    assert torch.equal(
        step.attend(view, batch.k_pages, batch.v_pages, None), step.attend(batch.q, batch.k_pages, batch.v_pages, None)
    )


def test_arguments_that_do_not_fit_are_refused_by_name(
    library: Library, team: ThreadTeam, make_batch: MakeBatch
) -> None:
    batch = make_batch([(1, 20), (6, 30)], (4, 2), 64, 16, torch.bfloat16)
    backend = CpuAttention(library, team)
    step = backend.prepare(batch.layout)
    pages = (batch.k_pages, batch.v_pages)
    with pytest.raises(KernelArgumentError, match=r"k_pages is torch\.bfloat16"):
        step.attend(batch.q.float(), *pages, None)
    with pytest.raises(KernelArgumentError, match=r"q is torch\.float16"):
        step.attend(batch.q.half(), *pages, None)
    with pytest.raises(KernelArgumentError, match="q holds 3 tokens, the layout 7"):
        step.attend(batch.q[:3], *pages, None)
    with pytest.raises(KernelArgumentError, match="v_pages has strides"):
        step.attend(batch.q, pages[0], pages[1].transpose(2, 3).contiguous().transpose(2, 3), None)
    with pytest.raises(KernelArgumentError, match="block_size 8 is no multiple of 16"):
        step.attend(batch.q, pages[0][:, :, :8].contiguous(), pages[1][:, :, :8].contiguous(), None)
    with pytest.raises(KernelArgumentError, match="block tables of 1 entries end before a row of 30"):
        backend.prepare(replace(batch.layout, block_tables=batch.layout.block_tables[:, :1])).attend(
            batch.q, *pages, None
        )
    with pytest.raises(KernelArgumentError, match="chunk of 6 tokens at 2"):
        backend.prepare(replace(batch.layout, chunks=(Chunk(2, 6, 30),)))
    with pytest.raises(KernelArgumentError, match=r"block_tables is torch\.int64"):
        backend.prepare(replace(batch.layout, block_tables=batch.layout.block_tables.long()))
