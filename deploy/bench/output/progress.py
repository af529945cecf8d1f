"""A progress bar on stderr: redrawn in place on a terminal, silent elsewhere."""

import sys
import time
from typing import TextIO

_WIDTH = 30
_REDRAW_S = 0.1


class ProgressBar:
    """Counts requests that ended, of a known number or within a known time."""

    def __init__(self, total: int | None, duration_s: float | None = None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total = total
        self._duration_s = duration_s
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._ended = self._failed = self._tokens = 0

    def advance(self, *, num_tokens: int, is_ok: bool) -> None:
        """A request ended."""
        self._ended += 1
        self._failed += not is_ok
        self._tokens += num_tokens
        now = time.monotonic()
        if self._stream.isatty() and now - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now
            self._stream.write("\r" + self._line(now - self._started_s) + "\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        """Wipes it."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self, passed_s: float) -> str:
        share = self._share(passed_s)
        bar = "" if share is None else "█" * round(share * _WIDTH) + "░" * (_WIDTH - round(share * _WIDTH)) + " "
        of = "" if self._total is None else f"/{self._total}"
        failed = f", {self._failed} failed" if self._failed else ""
        return (
            f"{bar}{self._ended}{of} requests{failed}, {self._tokens / max(passed_s, 1e-9):.0f} tok/s, {passed_s:.0f} s"
        )

    def _share(self, passed_s: float) -> float | None:
        if self._total is not None:
            return min(1.0, self._ended / self._total)
        return None if self._duration_s is None else min(1.0, passed_s / self._duration_s)
