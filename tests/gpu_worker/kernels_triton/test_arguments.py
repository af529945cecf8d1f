"""Wrappers refuse what their kernels would read wrongly: each refusal names the argument. Nothing is launched here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed: wrappers of its kernels cannot be imported")

from gpu_worker.kernels.triton.activation import silu_mul
from gpu_worker.kernels.triton.attention import paged_attention
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.checks import KernelArgumentError
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode
from gpu_worker.kernels.triton.norm import add_rms_norm
from gpu_worker.kernels.triton.rope_kv_write import KvTarget, rope_kv_write
from gpu_worker.kernels.triton.shapes import AttentionShape, num_splits
from gpu_worker.model.ops import HeadShape, TokenSlots

BF16 = torch.bfloat16
CPU = torch.device("cpu")


def good_kv() -> PagedKv:
    pages = torch.zeros(4, 2, 16, 64, dtype=BF16)
    return PagedKv(pages, pages.clone(), torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, dtype=torch.int32))


def attend(q: torch.Tensor, kv: PagedKv, **options: Any) -> None:
    paged_attention(q, kv, torch.arange(4, dtype=torch.int32), softmax_scale=1.0, **options)


Q = torch.zeros(3, 4, 64, dtype=BF16)

REFUSED: dict[str, Callable[[], object]] = {
    "head size 72": lambda: AttentionShape(4, 2, 72, 16),
    "block size 24": lambda: AttentionShape(4, 2, 64, 24),
    "block size 8": lambda: AttentionShape(4, 2, 64, 8),
    "cannot share 3 KV heads": lambda: AttentionShape(4, 3, 64, 16),
    "q is torch.float32": lambda: attend(Q.float(), good_kv()),
    "k_pages is torch.float16": lambda: attend(Q, replace(good_kv(), k_pages=good_kv().k_pages.half())),
    "v_pages has shape": lambda: attend(Q, replace(good_kv(), v_pages=good_kv().v_pages[:3])),
    "not contiguous": lambda: attend(Q, replace(good_kv(), k_pages=good_kv().k_pages.transpose(0, 1))),
    "block_tables is torch.int64": lambda: attend(Q, replace(good_kv(), block_tables=good_kv().block_tables.long())),
    "kv_lens has shape": lambda: attend(Q, replace(good_kv(), kv_lens=torch.ones(2, dtype=torch.int32))),
    "row_ids is torch.int64": lambda: attend(Q, replace(good_kv(), row_ids=torch.zeros(3, dtype=torch.int64))),
    "window is 0": lambda: attend(Q, good_kv(), window=0),
    "k_scale: fp8 pages need scales": lambda: attend(Q, replace(good_kv(), k_scale=torch.ones(2))),
    "multiple of 16 bytes": lambda: attend(torch.zeros(3 * 4 * 64 + 1, dtype=BF16)[1:].view(3, 4, 64), good_kv()),
    "out has shape": lambda: attend(Q, good_kv(), out=torch.zeros(3, 4, 32, dtype=BF16)),
    "splits is 3": lambda: SplitWorkspace.make(3, AttentionShape(4, 2, 64, 16), 3, CPU),
    "workspace holds 1 of 3 rows": lambda: paged_decode(
        Q, good_kv(), SplitWorkspace.make(1, AttentionShape(4, 2, 64, 16), 2, CPU), softmax_scale=1.0
    ),
    "qkv has shape": lambda: rope_kv_write(
        torch.zeros(3, 500, dtype=BF16),
        HeadShape(4, 2, 64),
        None,
        TokenSlots(torch.zeros(3, 64), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
        KvTarget(good_kv().k_pages, good_kv().v_pages),
    ),
    "weight has shape": lambda: add_rms_norm(
        torch.zeros(2, 32, dtype=BF16), torch.zeros(2, 32, dtype=BF16), torch.zeros(31, dtype=BF16), 1e-5
    ),
    "gate_up has 33 columns": lambda: silu_mul(torch.zeros(2, 33, dtype=BF16)),
}


@pytest.mark.parametrize("message", list(REFUSED))
def test_what_a_kernel_cannot_take_is_refused_by_name(message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message):
        REFUSED[message]()


def test_splits_fill_the_device_and_no_more() -> None:
    assert num_splits(1, 8, 100_000, 132) == 32
    assert num_splits(64, 8, 8192, 132) == 1
    assert num_splits(16, 8, 8192, 132) == 4
    assert num_splits(1, 8, 500, 132) == 1
    assert num_splits(1, 8, 3000, 132) == 8
