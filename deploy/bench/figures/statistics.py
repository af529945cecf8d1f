"""Percentiles and their bootstrap intervals, and Student's interval of a mean. Pure: seeds are arguments.

Observations of one request are not independent (a slow step delays all its tokens), so intervals resample whole
requests: the cluster bootstrap (Davison & Hinkley, *Bootstrap Methods*, 1997, 3.8).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]

QUANTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
CONFIDENCE = 0.95
NUM_RESAMPLES = 400
MIN_TAIL_OBSERVATIONS = 5
"""A percentile with fewer observations beyond it is little more than the maximum."""

# Two-sided 95 % points of Student's t by degrees of freedom, 1 to 30 (any statistics book); above, the expansion of
# Cornish and Fisher is exact to three digits.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_95 = 1.959964


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """A confidence interval of 95 %."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference with this interval is distinguishable from none."""
        return self.low > 0 or self.high < 0


class Clusters(msgspec.Struct, frozen=True):
    """Observations grouped by request: `values[i]` belongs to cluster `cluster[i]`, ascending by value."""

    values: Floats
    cluster: NDArray[numpy.int64]
    num_clusters: int


def group_observations(per_request: Sequence[Sequence[float]]) -> Clusters:
    """The observations of each request, pooled and sorted."""
    values = numpy.asarray([value for one in per_request for value in one], dtype=numpy.float64)
    cluster = numpy.repeat(numpy.arange(len(per_request)), [len(one) for one in per_request])
    order = numpy.argsort(values, kind="stable")
    return Clusters(values[order], cluster[order], len(per_request))


def percentile(sorted_values: Floats, q: float) -> float:
    """The `q`-th percentile (0 to 100) of ascending values, linear between neighbours as numpy's and vLLM's."""
    return float(numpy.percentile(sorted_values, q))


def bootstrap_percentiles(
    clusters: Clusters, quantiles: Sequence[float] = QUANTILES, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> list[Interval]:
    """A percentile-bootstrap interval for each quantile, resampling clusters. Needs at least one value."""
    found = resample_percentiles(clusters, quantiles, num_resamples, seed)
    return [middle(found[:, column]) for column in range(len(quantiles))]


def resample_percentiles(
    clusters: Clusters, quantiles: Sequence[float] = QUANTILES, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Floats:
    """The quantiles of each resample, `[num_resamples, len(quantiles)]`; NaN where a resample holds no value.

    A resample is a weight for each cluster, so that values are sorted once. Needs at least one value.
    """
    random = numpy.random.Generator(numpy.random.PCG64(seed))
    even = numpy.full(clusters.num_clusters, 1 / clusters.num_clusters)
    shares = numpy.asarray(quantiles) / 100
    found = numpy.full((num_resamples, len(shares)), numpy.nan)
    for resample in range(num_resamples):
        weights = random.multinomial(clusters.num_clusters, even)[clusters.cluster]
        reached = numpy.cumsum(weights)
        if reached[-1] > 0:
            found[resample] = clusters.values[numpy.searchsorted(reached, shares * (reached[-1] - 1), side="right")]
    return found


def bootstrap_mean(clusters: Clusters, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Interval:
    """A percentile-bootstrap interval of the mean of all values, resampling clusters. Needs at least one value."""
    random = numpy.random.Generator(numpy.random.PCG64(seed))
    sums = numpy.bincount(clusters.cluster, weights=clusters.values, minlength=clusters.num_clusters)
    counts = numpy.bincount(clusters.cluster, minlength=clusters.num_clusters)
    chosen = random.integers(0, clusters.num_clusters, size=(num_resamples, clusters.num_clusters))
    drawn = counts[chosen].sum(axis=1)
    with numpy.errstate(invalid="ignore"):
        return middle(sums[chosen].sum(axis=1) / drawn)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
    reach = t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return Interval(centre - reach, centre + reach)


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """Welch's interval of the difference of two means, theirs less ours; None for fewer than two values on a side."""
    if min(len(ours), len(theirs)) < 2:
        return None
    squares = [float(numpy.var(side, ddof=1)) / len(side) for side in (ours, theirs)]
    centre = float(numpy.mean(theirs) - numpy.mean(ours))
    if sum(squares) == 0:
        return Interval(centre, centre)
    split = sum(square**2 / (len(side) - 1) for square, side in zip(squares, (ours, theirs), strict=True))
    reach = t_quantile(max(1, int(sum(squares) ** 2 / split))) * math.sqrt(sum(squares))
    return Interval(centre - reach, centre + reach)


def t_quantile(degrees: int) -> float:
    """The two-sided 95 % point of Student's t."""
    if degrees <= len(_T_95):
        return _T_95[degrees - 1]
    first = (_Z_95**3 + _Z_95) / (4 * degrees)
    second = (5 * _Z_95**5 + 16 * _Z_95**3 + 3 * _Z_95) / (96 * degrees**2)
    return _Z_95 + first + second


def is_supported(num_values: int, q: float) -> bool:
    """Whether enough observations lie beyond the `q`-th percentile for it to mean anything."""
    return num_values * (100 - q) / 100 >= MIN_TAIL_OBSERVATIONS


def middle(estimates: Floats) -> Interval:
    """The interval that holds 95 % of the estimates; NaN are left out."""
    known = estimates[~numpy.isnan(estimates)]
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = numpy.percentile(known, (tail, 100 - tail))
    return Interval(float(low), float(high))
