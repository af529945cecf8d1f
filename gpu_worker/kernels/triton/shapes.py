"""Shapes that the attention kernels are built for, and the tile each shape gets.

The tiles are chosen by what ahead-of-time compilation shows (no spills, shared memory within the device's), not by
timing: `deploy/bench/gpu_check.py` sweeps the candidates where a GPU is at hand.
"""

import enum
from dataclasses import dataclass, replace

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


class DeviceClass(enum.Enum):
    """Devices that want tiles of their own. The value is the architecture that the tiles are compiled for in CI."""

    AMPERE = 80
    """A100: compute capability 8.0 and 8.7."""
    SMALL = 86
    """Consumer cards, 8.6, 8.9 and 12.x: less shared memory a program."""
    HOPPER = 90
    """H100, H200."""
    BLACKWELL = 100
    """B200: 10.x."""

    @classmethod
    def of(cls, device: torch.device) -> "DeviceClass":
        """That of a CUDA device. Raises KernelArgumentError before compute capability 8.0; others count as HOPPER."""
        if device.type != "cuda":
            return cls.HOPPER
        capability = torch.cuda.get_device_capability(device)
        check_that(capability >= (8, 0), f"compute capability {capability}: the kernels need 8.0 or newer")
        if capability in ((8, 0), (8, 7)):
            return cls.AMPERE
        return {9: cls.HOPPER, 10: cls.BLACKWELL}.get(capability[0], cls.SMALL)


_LARGE_PREFILL = {64: Tile(128, 64, 8, 3), 128: Tile(128, 64, 8, 3), 256: Tile(64, 32, 8, 2)}
_LARGE_DECODE = {64: Tile(16, 128, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 32, 4, 3)}
_PREFILL = {
    # 128 rows with head size 128 spill on sm_80 where the group is no power of two.
    DeviceClass.AMPERE: _LARGE_PREFILL | {128: Tile(64, 64, 8, 2)},
    DeviceClass.HOPPER: _LARGE_PREFILL,
    # With 8 warps ptxas spills a few bytes for head size 256 on sm_100.
    DeviceClass.BLACKWELL: _LARGE_PREFILL | {256: Tile(64, 32, 4, 2)},
    DeviceClass.SMALL: {64: Tile(64, 64, 4, 2), 128: Tile(64, 32, 4, 2), 256: Tile(32, 32, 4, 2)},
}
_DECODE = {
    DeviceClass.AMPERE: _LARGE_DECODE,
    DeviceClass.HOPPER: _LARGE_DECODE,
    DeviceClass.BLACKWELL: _LARGE_DECODE,
    DeviceClass.SMALL: {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 2), 256: Tile(16, 32, 4, 2)},
}


def prefill_tile(shape: AttentionShape, device_class: DeviceClass) -> Tile:
    """Tile of the unified kernel; its rows hold one token's group at least."""
    tile = _PREFILL[device_class][shape.dim_pad]
    return tile if tile.block_m >= shape.group else replace(tile, block_m=64)


def decode_tile(shape: AttentionShape, device_class: DeviceClass) -> Tile:
    """Tile of the split-KV kernel."""
    return _DECODE[device_class][shape.dim_pad]


def num_splits(num_rows: int, num_kv_heads: int, max_kv_len: int, num_multiprocessors: int) -> int:
    """Splits a row for a launch that fills the device about twice: a power of two, 1 to 32.

    No split is planned under 256 positions, and a batch that fills the device alone is not split, which also saves
    the reduction.
    """
    programs = max(1, num_rows * num_kv_heads)
    wanted = -(-2 * num_multiprocessors // programs)
    most = min(32, max(1, max_kv_len // 256))
    return min(next_power_of_2(wanted), 1 << (most.bit_length() - 1))
