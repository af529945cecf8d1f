"""Differences with their intervals as one picture, a row a metric: a forest plot as SVG text. Pure.

Relative, so that metrics of any unit share an axis; what has no interval, or nothing to be relative to, is named below.
"""

import html
import math
from collections.abc import Sequence

from deploy.bench.figures.comparison import Difference, Verdict
from deploy.bench.output.svg import nice_ticks, svg_text

WIDTH = 760
LIMIT = 2.0
"""Of the axis, as a multiple of ours: what reaches farther ends in an arrow."""
_LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 190, 120, 30, 20, 40
_COLOURS = {Verdict.BETTER: "#009e73", Verdict.WORSE: "#d55e00"}
_OTHER_COLOUR = "#777777"


def render_forest(title: str, differences: Sequence[Difference]) -> str:
    """An ``<svg>`` element; empty where no difference has an interval."""
    rows = [(one, *span) for one in differences if (span := _relative_interval(one)) is not None]
    if not rows:
        return ""
    height = _TOP + _ROW * len(rows) + _BOTTOM
    ends = [end for _, low, high in rows for end in (low, high)]
    ticks = nice_ticks(100 * max(-LIMIT, min(0.0, *ends)), 100 * min(LIMIT, max(0.0, *ends)), 8)
    bottom = height - _BOTTOM
    body = [f"<title>{html.escape(title)}</title>", svg_text(_LEFT, 16, title, "start", "title")]
    for tick in ticks:
        body.append(f'<path class="grid" d="M{_x(tick, ticks):.1f} {_TOP}V{bottom}"/>')
        body.append(svg_text(_x(tick, ticks), bottom + 15, f"{tick:+g} %", "middle"))
    body.append(f'<path d="M{_x(0, ticks):.1f} {_TOP}V{bottom}" stroke="{_OTHER_COLOUR}" stroke-width="1.5"/>')
    for number, (one, low, high) in enumerate(rows):
        body += _row(one, (low, high), ticks, _TOP + _ROW * (number + 0.5))
    caption = "theirs less ours, as a share of ours, with the 95 % interval"
    body.append(svg_text((_LEFT + WIDTH - _RIGHT) / 2, height - 8, caption, "middle"))
    frame = f'class="forest" viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg"'
    return f"<svg {frame}>{''.join(body)}</svg>"


def find_undrawn(differences: Sequence[Difference]) -> list[str]:
    """Metrics that `render_forest` leaves out."""
    return [one.metric for one in differences if _relative_interval(one) is None]


def _relative_interval(one: Difference) -> tuple[float, float] | None:
    if one.interval is None or not one.ours:
        return None
    low, high = sorted((one.interval.low / one.ours, one.interval.high / one.ours))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _row(one: Difference, span: tuple[float, float], ticks: Sequence[float], y: float) -> list[str]:
    colour = _COLOURS.get(one.verdict, _OTHER_COLOUR)
    first, last = ticks[0], ticks[-1]
    low, high = (100 * end for end in span)
    start, end = _x(max(low, first), ticks), _x(min(high, last), ticks)
    marks = [f"M{start:.1f} {y:.1f}H{end:.1f}"]
    marks.append(f"M{start:.1f} {y - 4:.1f}v8" if low >= first else f"M{start + 5:.1f} {y - 4:.1f}l-5 4l5 4")
    marks.append(f"M{end:.1f} {y - 4:.1f}v8" if high <= last else f"M{end - 5:.1f} {y - 4:.1f}l5 4l-5 4")
    told = f"{one.relative or 0:+.1%}"
    spoken = html.escape(f"{one.metric}: {told}, {low:+.1f} % to {high:+.1f} %: {one.verdict.value}")
    drawn = [
        svg_text(_LEFT - 8, y + 4, one.metric, "end"),
        f'<path class="line" stroke="{colour}" d="{"".join(marks)}"><title>{spoken}</title></path>',
    ]
    middle = 100 * (one.relative or 0)
    if first <= middle <= last:
        drawn.append(f'<circle cx="{_x(middle, ticks):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    word = one.verdict.value if one.verdict in _COLOURS else "noise"
    return [*drawn, svg_text(WIDTH - _RIGHT + 8, y + 4, f"{told} {word}", "start")]


def _x(percent: float, ticks: Sequence[float]) -> float:
    return _LEFT + (percent - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - _LEFT - _RIGHT)
