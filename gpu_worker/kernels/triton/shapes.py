"""Shapes that the attention kernels are built for, and the tile each shape gets.

The tiles are chosen by what ahead-of-time compilation shows (no spills, shared memory within the device's), not by
timing: `deploy/bench/gpu_check.py` sweeps the candidates where a GPU is at hand.
"""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_that

HEAD_DIMS = (64, 80, 96, 128, 256)
QUERY_DTYPES = (torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fn
SMALLEST_DOT = 16
"""Rows and columns that a tile of tl.dot needs at least."""


def next_power_of_2(number: int) -> int:
    """Smallest power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads and pages of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    def __post_init__(self) -> None:
        """Raises KernelArgumentError for a shape that the kernels do not do."""
        check_that(
            self.head_dim in HEAD_DIMS,
            f"head size {self.head_dim}: the kernels do {', '.join(map(str, HEAD_DIMS))}",
        )
        check_that(
            self.num_kv_heads > 0 and self.num_heads > 0 and self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly",
        )
        check_that(self.group <= 64, f"{self.group} query heads a KV head: the kernels pack 64 at most")
        check_that(
            self.block_size >= 16 and self.block_size == next_power_of_2(self.block_size),
            f"block size {self.block_size}: the kernels need a power of two, 16 at least",
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def dim_pad(self) -> int:
        """Head size rounded up to what a tile can have."""
        return next_power_of_2(self.head_dim)


@dataclass(frozen=True, slots=True)
class Tile:
    """How much one program takes, and with how many threads and buffers."""

    block_m: int
    """Packed rows: query tokens times the query heads of one KV head. Decode tiles ignore it."""
    block_n: int
    """Positions a step of the loop."""
    num_warps: int
    num_stages: int


LARGE_SHARED_BYTES = 160 << 10
"""Shared memory a program may have on sm_80, sm_90 and sm_100 (163 KiB on the smallest of them)."""
SMALL_SHARED_BYTES = 99 << 10
"""The same on sm_86, sm_89 and sm_120."""

_PREFILL: dict[tuple[int, bool], Tile] = {
    (64, True): Tile(128, 64, 4, 3),
    (128, True): Tile(128, 64, 8, 3),
    (256, True): Tile(64, 32, 8, 2),
    (64, False): Tile(64, 64, 4, 2),
    (128, False): Tile(64, 32, 4, 2),
    (256, False): Tile(32, 32, 4, 2),
}
_DECODE: dict[tuple[int, bool], Tile] = {
    (64, True): Tile(16, 128, 4, 3),
    (128, True): Tile(16, 64, 4, 3),
    (256, True): Tile(16, 32, 4, 3),
    (64, False): Tile(16, 64, 4, 3),
    (128, False): Tile(16, 64, 4, 2),
    (256, False): Tile(16, 32, 4, 2),
}


def has_large_shared_memory(device: torch.device) -> bool:
    """Whether the device's programs may have `LARGE_SHARED_BYTES`; not so on consumer cards."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) in ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))


def prefill_tile(shape: AttentionShape, *, large: bool = True) -> Tile:
    """Tile of the unified kernel; its rows hold one token's group at least."""
    tile = _PREFILL[shape.dim_pad, large]
    return tile if tile.block_m >= shape.group else Tile(64, tile.block_n, tile.num_warps, tile.num_stages)


def decode_tile(shape: AttentionShape, *, large: bool = True) -> Tile:
    """Tile of the split-KV kernel."""
    return _DECODE[shape.dim_pad, large]


def num_splits(num_rows: int, num_kv_heads: int, max_kv_len: int, num_multiprocessors: int) -> int:
    """Splits a row for a launch that fills the device about twice: a power of two, 1 to 32.

    No split is planned under 256 positions, and a batch that fills the device alone is not split, which also saves
    the reduction.
    """
    programs = max(1, num_rows * num_kv_heads)
    wanted = -(-2 * num_multiprocessors // programs)
    most = min(32, max(1, max_kv_len // 256))
    return min(next_power_of_2(wanted), 1 << (most.bit_length() - 1))
