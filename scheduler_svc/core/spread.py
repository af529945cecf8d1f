"""A distribution of durations in few counters: sixteen buckets an octave, whole numbers only."""

_SUB_BITS = 4


class Spread:
    """Counts of whole nanoseconds, each right within 1/16."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, value: int, count: int = 1) -> None:
        """`count` times this duration."""
        shift = max(value.bit_length() - _SUB_BITS - 1, 0)
        bucket = (shift << (_SUB_BITS + 1)) + (value >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def quantile(self, parts_per_million: int) -> int:
        """The upper end of the bucket that so many parts of all values do not pass; 0 when empty."""
        wanted = -(-self.count * parts_per_million // 1_000_000)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                shift, top = bucket >> (_SUB_BITS + 1), bucket & ((2 << _SUB_BITS) - 1)
                return ((top + 1) << shift) - 1
        return 0
