"""Sizes that the batch was built for, and the error for a plan that does not fit them or the batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What the device state was sized for; a plan beyond it is invalid."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    """Of the pool that sequences are swapped out to."""

    @property
    def max_blocks_per_row(self) -> int:
        """Length of a block table."""
        return -(-self.max_model_len // self.block_size)


class InvalidPlanError(ValueError):
    """A plan that cannot be carried out. The message names the rule, and no token id."""

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows
        """Rows at fault, where they are known."""
