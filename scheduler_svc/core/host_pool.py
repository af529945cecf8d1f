"""Blocks on the host for sequences that gave way, and what copying a block costs."""

from collections.abc import Iterable

from scheduler_svc.core.cost_model import StepCosts, StepShape

_INITIAL_BYTES_PER_NS = 10.0
"""Of a link between device and host, until copies have been timed."""
_SMOOTHING = 1 / 16


class HostPool:
    """Host blocks 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many blocks; ask `num_free` first. Raises IndexError otherwise."""
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: Iterable[int]) -> None:
        """They hold nothing any more."""
        self._free.extend(blocks)


class SwapCost:
    """Nanoseconds to copy a block to or from the host: from its size at first, then as measured."""

    def __init__(self, block_bytes: int) -> None:
        self.block_ns = block_bytes / _INITIAL_BYTES_PER_NS

    def observe(self, costs: StepCosts | None, shape: StepShape, num_blocks: int, took_ns: int) -> None:
        """A step that copied so many blocks took so long."""
        if costs is None or took_ns <= 0:
            return
        measured = max(took_ns - costs.step_ns(shape), 0.0) / num_blocks
        self.block_ns += (min(measured, 8 * self.block_ns + 1.0) - self.block_ns) * _SMOOTHING
