"""Differences between runs as rows of a table. Pure."""

from collections.abc import Sequence

from deploy.bench.figures.comparison import Difference
from deploy.bench.output.table import format_table

DIFFERENCE_HEADER = ("metric", "ours", "theirs", "difference", "95 % interval", "relative", "verdict")


def format_differences(differences: Sequence[Difference]) -> str:
    """A table for the terminal."""
    return format_table([to_difference_row(one) for one in differences], DIFFERENCE_HEADER)


def to_difference_row(one: Difference) -> list[str]:
    """Its cells, by `DIFFERENCE_HEADER`."""
    interval = "–" if one.interval is None else f"{one.interval.low:+.3g} … {one.interval.high:+.3g}"
    relative = "–" if one.relative is None else f"{one.relative:+.1%}"
    verdict = one.verdict.value + (" (within one run)" if one.is_within_run and one.interval is not None else "")
    return [one.metric, f"{one.ours:.4g}", f"{one.theirs:.4g}", f"{one.difference:+.3g}", interval, relative, verdict]
