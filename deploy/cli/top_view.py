"""How `chairlift top` looks: lines of text from samples and iterations. Knows no terminal and no server."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from deploy.cli.top_samples import Beat, Sample

_BARS = " ▁▂▃▄▅▆▇█"
_PLAIN_BARS = " .:-=+*#@"
_NUM_ROWS = 8
"""Iterations told in numbers beneath the timeline."""
_BAR_WIDTH = 24
_TITLE_WIDTH = 10


class Marks(Protocol):
    """Marks text for a terminal."""

    def bold(self, text: str) -> str:
        """Stands out."""

    def dim(self, text: str) -> str:
        """Stands back."""


def line(sample: Sample) -> str:
    """A replica in one line, for a log."""
    return (
        f"{sample.replica_id} {sample.state}  running {sample.num_running}  waiting {sample.num_waiting}  "
        f"preempted {sample.num_preempted}  kv {sample.kv_share:.0%}  output {_rate(sample.output_rate)} tok/s  "
        f"prompt {_rate(sample.prompt_rate)} tok/s  iterations {_rate(sample.iteration_rate)}/s  "
        f"revision {sample.config_revision}"
    )


def screen(
    sample: Sample, beats: Sequence[Beat], num_missed: int, width: int, marks: Marks, *, is_plain: bool
) -> list[str]:
    """A replica in several lines, none wider than `width`."""
    seats = beats[-1].max_num_seqs if beats else 0
    title = f"{sample.replica_id}  {sample.state}  {sample.device}  revision {sample.config_revision}"
    lines = [
        marks.bold(title[:width]),
        f"running   {_bar(sample.num_running, seats, is_plain)} {_of(sample.num_running, seats)}",
        f"KV blocks {_bar(sample.kv_used, sample.kv_total, is_plain)} {_of(sample.kv_used, sample.kv_total)}",
        f"waiting   {sample.num_waiting}  (preempted {sample.num_preempted}, swapped {sample.num_swapped})",
        _rates(sample),
        "",
        *_timeline(list(beats)[-max(width - _TITLE_WIDTH, 1) :], is_plain),
        marks.dim(_missed(num_missed)),
        *_table(beats, marks),
    ]
    return [one if "\x1b" in one else one[:width] for one in lines]


def _rates(sample: Sample) -> str:
    return (
        f"tokens/s  output {_rate(sample.output_rate)}  prompt {_rate(sample.prompt_rate)}  "
        f"iterations/s {_rate(sample.iteration_rate)}  preemptions/s {_rate(sample.preemption_rate)}"
    )


def _missed(num_missed: int) -> str:
    return f"one column an iteration, newest right; {num_missed} left out"


def _timeline(beats: Sequence[Beat], is_plain: bool) -> list[str]:
    longest = max((beat.total_ms for beat in beats), default=0.0)
    rows: dict[str, list[tuple[float, float]]] = {
        "batch": [(beat.num_seqs, beat.max_num_seqs) for beat in beats],
        "prefill": [(beat.num_prefill_tokens, beat.token_budget) for beat in beats],
        "waiting": [(beat.num_waiting, max(one.num_waiting for one in beats)) for beat in beats],
        "time": [(beat.total_ms, longest) for beat in beats],
    }
    return [f"{name:<{_TITLE_WIDTH}}{_spark(values, is_plain)}" for name, values in rows.items()]


def _spark(values: Iterable[tuple[float, float]], is_plain: bool) -> str:
    bars = _PLAIN_BARS if is_plain else _BARS
    return "".join(bars[_height(value, full, len(bars) - 1)] for value, full in values)


def _height(value: float, full: float, top: int) -> int:
    """0 for nothing only."""
    if value <= 0 or full <= 0:
        return 0
    return min(top, max(1, round(value / full * top)))


def _table(beats: Sequence[Beat], marks: Marks) -> list[str]:
    heads = ("step", "seqs", "decode", "prefill", "budget", "waiting", "boarded", "left", "preempted", "plan ms", "ms")
    rows = [
        (
            str(beat.step),
            str(beat.num_seqs),
            str(beat.num_tokens - beat.num_prefill_tokens),
            str(beat.num_prefill_tokens),
            str(beat.token_budget),
            str(beat.num_waiting),
            str(beat.num_boarded),
            str(beat.num_departed),
            str(beat.num_preempted),
            f"{beat.plan_ms:.2f}",
            f"{beat.total_ms:.1f}",
        )
        for beat in list(beats)[-_NUM_ROWS:]
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def joined(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    return [marks.dim(joined(heads)), *map(joined, rows)]


def _bar(value: int, full: int, is_plain: bool) -> str:
    filled = _height(value, full, _BAR_WIDTH)
    return f"[{('#' if is_plain else '█') * filled}{' ' * (_BAR_WIDTH - filled)}]"


def _of(value: int, full: int) -> str:
    return f"{value} of {full} ({value / full:.0%})" if full else str(value)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
