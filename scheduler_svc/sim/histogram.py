"""A histogram of durations with 1 % wide buckets: any number of values in little memory."""

import math

_GROWTH = math.log(1.01)


class Histogram:
    """Counts of whole nanoseconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.largest = 0

    def add(self, value: int, count: int = 1) -> None:
        """`count` times this duration."""
        bucket = int(math.log(value) / _GROWTH) if value > 0 else -1
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.total += value * count
        self.largest = max(self.largest, value)

    def cumulative(self) -> list[tuple[float, float]]:
        """Points of the distribution: milliseconds, and the percentage of values that are no larger."""
        points, seen = [], 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            points.append((math.exp((bucket + 1) * _GROWTH) / 1e6 if bucket >= 0 else 0.0, 100 * seen / self.count))
        return points

    @property
    def mean(self) -> float:
        """0 when empty."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value that `share` of all do not exceed, within 1 %; 0 when empty."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(math.exp((bucket + 0.5) * _GROWTH), self.largest) if bucket >= 0 else 0.0
        return float(self.largest)
