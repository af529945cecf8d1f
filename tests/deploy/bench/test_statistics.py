"""Percentiles and intervals against distributions whose true values are known."""

import math
from typing import Any

import numpy
import pytest

from deploy.bench.figures.statistics import (
    Interval,
    bootstrap_mean,
    bootstrap_percentiles,
    group_observations,
    is_supported,
    mean_interval,
    percentile,
    t_quantile,
)


def test_percentiles_of_a_known_grid() -> None:
    clusters = group_observations([[float(value)] for value in reversed(range(1001))])
    assert [percentile(clusters.values, q) for q in (50, 90, 99, 99.9)] == pytest.approx([500, 900, 990, 999])


@pytest.mark.parametrize(
    ("draw", "quantile"),
    [
        (lambda random, size: random.exponential(1.0, size), lambda p: -math.log(1 - p)),
        (lambda random, size: random.uniform(0, 1, size), lambda p: p),
        (lambda random, size: random.pareto(3.0, size), lambda p: (1 - p) ** (-1 / 3) - 1),
    ],
    ids=["exponential", "uniform", "pareto"],
)
def test_intervals_cover_the_true_percentile_as_often_as_they_say(draw: Any, quantile: Any) -> None:
    """95 % intervals of p50 and p90 from 200 draws, 100 times over: about 95 of them hold the truth."""
    random = numpy.random.Generator(numpy.random.PCG64(1))
    hits = {50.0: 0, 90.0: 0}
    for repetition in range(100):
        clusters = group_observations([[value] for value in draw(random, 200).tolist()])
        intervals = bootstrap_percentiles(clusters, (50.0, 90.0), num_resamples=200, seed=repetition)
        for q, interval in zip(hits, intervals, strict=True):
            hits[q] += interval.low <= quantile(q / 100) <= interval.high
    assert all(86 <= count <= 100 for count in hits.values()), hits


def test_observations_of_one_request_are_not_taken_for_independent() -> None:
    """Requests that differ, with 50 equal gaps each: the interval is that of 40 values, not of 2,000."""
    random = numpy.random.Generator(numpy.random.PCG64(2))
    levels = random.normal(20, 4, 40).tolist()
    clustered = bootstrap_mean(group_observations([[level] * 50 for level in levels]))
    alone = bootstrap_mean(group_observations([[level] for level in levels]))
    assert clustered.high - clustered.low == pytest.approx(alone.high - alone.low, rel=0.01)
    median = bootstrap_percentiles(group_observations([[level] * 50 for level in levels]), (50.0,))[0]
    assert median.high - median.low > 1.0


def test_mean_intervals_cover_the_truth() -> None:
    random = numpy.random.Generator(numpy.random.PCG64(3))
    hits = 0
    for _ in range(1000):
        interval = mean_interval(random.normal(7, 2, 5).tolist())
        assert interval is not None
        hits += interval.low <= 7 <= interval.high
    assert 930 <= hits <= 970


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (4, 2.776), (30, 2.042), (40, 2.021), (120, 1.980)])
def test_students_quantiles(degrees: int, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, abs=6e-4)


def test_one_value_has_no_interval_of_its_mean() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([3.0, 3.0]) == Interval(3.0, 3.0)


def test_a_tail_with_few_observations_is_marked() -> None:
    assert is_supported(500, 99.0)
    assert not is_supported(499, 99.0)
    assert not is_supported(1000, 99.9)


def test_requests_without_observations_count_in_no_resample() -> None:
    clusters = group_observations([[], [5.0], []])
    assert bootstrap_percentiles(clusters, (50.0,)) == [Interval(5.0, 5.0)]
    assert bootstrap_mean(clusters) == Interval(5.0, 5.0)
