"""Line charts as SVG text: axes, grid, legend, several series. Pure.

Own code rather than a plotting library: a report needs one kind of chart, readable in light and dark pages and by
itself in a file, and ten packages for it would weigh more than this module.
"""

import html
import math
from collections.abc import Callable, Sequence

import msgspec

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 46
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
"""Okabe and Ito's, which people with colour-blindness tell apart."""
_MAX_POINTS = 1500

_STYLE = """<style>
text { font-family: system-ui, sans-serif } .title { font-weight: 600; font-size: 13px; fill: #333 }
.label { font-size: 11px; fill: #767676 } .grid { stroke: #ddd; stroke-width: 1 }
.line { fill: none; stroke-width: 1.6 } .key { stroke-width: 3 }
</style><rect width="100%" height="100%" fill="#fff"/>"""

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    """A line."""

    name: str
    points: Sequence[Point]
    is_stepped: bool = False


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be drawn."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_log_x: bool = False
    y_max: float | None = None


def colour_of(number: int) -> str:
    """The colour of the series with that number."""
    return _COLOURS[number % len(_COLOURS)]


def render_chart(chart: Chart) -> str:
    """An ``<svg>`` element; a note instead of lines where there is no point."""
    points = [point for series in chart.series for point in series.points]
    if chart.is_log_x:
        points = [point for point in points if point[0] > 0]
    body = _frame(chart)
    if points:
        x_of, x_ticks = _x_axis(chart, points)
        y_of, y_ticks = _y_axis(chart, points)
        body += _grid(x_of, x_ticks, y_of, y_ticks)
        for number, series in enumerate(chart.series):
            body.append(_line(chart, series, number, x_of, y_of))
        body += _legend(chart.series)
    else:
        body.append(svg_text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle"))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'


def render_chart_file(chart: Chart) -> str:
    """The same as a file of its own, with its style and a white ground."""
    start, end = render_chart(chart).split(">", 1)
    return f"{start}>{_STYLE}{end}\n"


def thin_out(points: Sequence[Point], limit: int = _MAX_POINTS) -> Sequence[Point]:
    """At most about `limit` of them, evenly, the last one included."""
    if len(points) <= limit:
        return points
    step = len(points) / limit
    return [points[int(at * step)] for at in range(limit)] + [points[-1]]


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover `low` to `high` in steps of 1, 2 or 5 times a power of ten."""
    span = high - low if high > low else abs(high) or 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [at * step for at in range(first, max(last, first + 1) + 1)]


def _x_axis(chart: Chart, points: Sequence[Point]) -> tuple[Callable[[float], float], list[float]]:
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    reach = WIDTH - _LEFT - _RIGHT
    if not chart.is_log_x:
        ticks = nice_ticks(min(0.0, low), high, 8)
        return (lambda x: _LEFT + (x - ticks[0]) / (ticks[-1] - ticks[0]) * reach), ticks
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    ticks = [tick for tick in ticks if tick <= 10.0**last]
    return (lambda x: _LEFT + (math.log10(x) - first) / (last - first) * reach), ticks


def _y_axis(chart: Chart, points: Sequence[Point]) -> tuple[Callable[[float], float], list[float]]:
    high = chart.y_max if chart.y_max is not None else max(y for _, y in points)
    ticks = nice_ticks(0.0, high)
    reach = HEIGHT - _TOP - _BOTTOM
    return (lambda y: HEIGHT - _BOTTOM - min(y, ticks[-1]) / ticks[-1] * reach), ticks


def _frame(chart: Chart) -> list[str]:
    middle_y = (HEIGHT + _TOP - _BOTTOM) / 2
    return [
        f"<title>{html.escape(chart.title)}</title>",
        svg_text(_LEFT, 16, chart.title, "start", "title"),
        svg_text((WIDTH + _LEFT) / 2, HEIGHT - 8, chart.x_label, "middle"),
        f'<g transform="rotate(-90 14 {middle_y})">{svg_text(14, middle_y, chart.y_label, "middle")}</g>',
    ]


def _grid(
    x_of: Callable[[float], float], x_ticks: list[float], y_of: Callable[[float], float], y_ticks: list[float]
) -> list[str]:
    found = []
    for tick in x_ticks:
        x = x_of(tick)
        found.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>')
        found.append(svg_text(x, HEIGHT - _BOTTOM + 15, f"{tick:g}", "middle"))
    for tick in y_ticks:
        y = y_of(tick)
        found.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        found.append(svg_text(_LEFT - 6, y + 4, f"{tick:g}", "end"))
    return found


def _line(
    chart: Chart, series: Series, number: int, x_of: Callable[[float], float], y_of: Callable[[float], float]
) -> str:
    points = [point for point in thin_out(series.points) if point[0] > 0 or not chart.is_log_x]
    if not points:
        return ""
    path = [f"M{x_of(points[0][0]):.1f} {y_of(points[0][1]):.1f}"]
    for x, y in points[1:]:
        path.append(f"H{x_of(x):.1f}V{y_of(y):.1f}" if series.is_stepped else f"L{x_of(x):.1f} {y_of(y):.1f}")
    name = html.escape(series.name)
    return f'<path class="line" stroke="{colour_of(number)}" d="{"".join(path)}"><title>{name}</title></path>'


def _legend(series: Sequence[Series]) -> list[str]:
    found, x = [], float(WIDTH - _RIGHT)
    for number, one in reversed(list(enumerate(series))):
        x -= 7.0 * len(one.name) + 24
        found.append(f'<path class="key" stroke="{colour_of(number)}" d="M{x:.0f} {_TOP - 8}h14"/>')
        found.append(svg_text(x + 18, _TOP - 4, one.name, "start"))
    return found


def svg_text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    """A ``<text>`` element; `anchor` and `kind` as in SVG and in the page's style."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
