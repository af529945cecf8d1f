"""Times at which idle processes of one machine wake together: one finds warm in the caches what another has used."""

from typing import TypeVar

TimeT = TypeVar("TimeT", int, float)


def until_round_time(now: TimeT, interval: TimeT) -> TimeT:
    """From `now`, monotonic, to the next whole multiple of `interval`, in one unit: above 0, at most `interval`."""
    return interval - now % interval
