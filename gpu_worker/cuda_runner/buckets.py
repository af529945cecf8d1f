"""Sizes of batch that decode graphs are captured for. A step takes the smallest that holds it; the rest is padding."""

import bisect
from collections.abc import Sequence


def graph_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Rising sizes up to `max_num_seqs`, itself included: padding adds at most half of a step's rows, or 3."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224]
    sizes += range(256, max_num_seqs, 64)
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def bucket_for(num_rows: int, buckets: Sequence[int]) -> int | None:
    """Smallest bucket that holds the rows; None where none does."""
    index = bisect.bisect_left(buckets, num_rows)
    return buckets[index] if index < len(buckets) else None
