"""Native kernels on every instruction set that this machine has, and paged caches with NaN wherever no row owns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu.instruction_sets import usable_instruction_sets
from gpu_worker.kernels.cpu.library import Library, load_library
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.model.attention import AttentionLayout, Chunk


def tested_instruction_sets() -> list[str]:
    """This machine's best, that of other common servers, and the least: each costs seconds of compiling."""
    usable = [each.name for each in usable_instruction_sets()]
    return [name for name in usable if name in (usable[0], "v4-bf16", "v3")] or ["none"]


@pytest.fixture(scope="session", params=tested_instruction_sets())
def library(request: pytest.FixtureRequest) -> Library:
    try:
        return load_library(None if request.param == "none" else request.param)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def team(library: Library) -> ThreadTeam:
    return ThreadTeam(library, num_threads=2)


@dataclass
class PagedBatch:
    """Rows of a step with their keys and values in pages; everything that no row owns is NaN."""

    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    layout: AttentionLayout


Rows = Sequence[tuple[int, int]]
"""(num_tokens, kv_len) of each row: its last `num_tokens` positions are queries of this step."""

MakeBatch = Callable[..., PagedBatch]


@pytest.fixture
def make_batch() -> MakeBatch:
    """`rows`: those of one token come first, as decode rows. The last page is finite and belongs to no one."""

    def make(
        rows: Rows, heads: tuple[int, int], head_dim: int, block_size: int, dtype: torch.dtype, seed: int = 0
    ) -> PagedBatch:
        generator = torch.Generator().manual_seed(seed)
        num_heads, num_kv_heads = heads
        pages_of = [-(-kv_len // block_size) for _, kv_len in rows]
        num_pages = sum(pages_of) + 3
        order = torch.randperm(num_pages - 1, generator=generator).tolist()
        tables = torch.full((len(rows), max(pages_of) + 1), num_pages - 2, dtype=torch.int32)
        pages = torch.full((2, num_pages, num_kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
        pages[:, -1] = 0
        for index, (_, kv_len) in enumerate(rows):
            mine = [order.pop() for _ in range(pages_of[index])]
            tables[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            content = torch.randn(2, kv_len, num_kv_heads, head_dim, generator=generator).to(dtype)
            for position in range(kv_len):
                pages[:, mine[position // block_size], :, position % block_size] = content[:, position]
        num_decodes = sum(num_tokens == 1 for num_tokens, _ in rows)
        chunks, start = [], num_decodes
        for num_tokens, kv_len in rows[num_decodes:]:
            chunks.append(Chunk(start, num_tokens, kv_len))
            start += num_tokens
        lens = np.array([kv_len for _, kv_len in rows[:num_decodes]], dtype=np.int64)
        q = (torch.randn(start, num_heads, head_dim, generator=generator) * 2).to(dtype)
        return PagedBatch(q, pages[0], pages[1], AttentionLayout(tables, lens, tuple(chunks)))

    return make
