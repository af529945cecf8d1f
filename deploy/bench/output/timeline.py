"""The batch timeline: a bar a request, waiting and then decoding, so that one sees who rode with whom. Pure."""

import html

from deploy.bench.load.record import RequestRecord
from deploy.bench.output.result import RunResult
from deploy.bench.output.svg import nice_ticks

_WIDTH = 1120
_LEFT, _TOP, _BOTTOM = 10, 24, 26
_MAX_ROWS = 200


def render_timeline(label: str, run: RunResult) -> str:
    """An ``<svg>`` element of the first requests in order of their sending; nothing for a run without any."""
    records = run.records[:_MAX_ROWS]
    if not records:
        return ""
    row = 9 if len(records) <= 80 else 5
    end_s = max(record.ended_ns for record in records) / 1e9
    ticks = nice_ticks(0.0, end_s or 1.0, 12)
    scale = (_WIDTH - 2 * _LEFT) / ticks[-1]
    height = _TOP + row * len(records) + _BOTTOM
    left_out = f", first {_MAX_ROWS} of {len(run.records)}" if len(run.records) > _MAX_ROWS else ""
    parts = [f'<text class="title" x="{_LEFT}" y="14">{html.escape(label)}: requests over time{left_out}</text>']
    for tick in ticks:
        x = _LEFT + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{height - _BOTTOM}"/>')
        parts.append(f'<text class="label" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick:g} s</text>')
    for at, record in enumerate(records):
        parts.append(_bar(record, _TOP + at * row, row - 1, scale))
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def _bar(record: RequestRecord, y: int, height: int, scale: float) -> str:
    sent, ended = record.intended_ns / 1e9, record.ended_ns / 1e9
    first = record.delta_ns[0] / 1e9 if record.delta_ns else ended
    told = (
        f"request {record.number}: {record.outcome.value} {record.reason}\n{record.prompt_tokens} in, "
        f"{record.output_tokens} out; first token after {first - sent:.2f} s, end after {ended - sent:.2f} s"
    )
    kind = "decode" if record.is_measured else "bad"
    return (
        f"<g><title>{html.escape(told)}</title>"
        f'<rect class="wait" x="{_LEFT + sent * scale:.1f}" y="{y}" width="{max((first - sent) * scale, 0.5):.1f}" '
        f'height="{height}"/>'
        f'<rect class="{kind}" x="{_LEFT + first * scale:.1f}" y="{y}" width="{max((ended - first) * scale, 0.5):.1f}" '
        f'height="{height}"/></g>'
    )
