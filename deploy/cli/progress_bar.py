"""A line on stderr that tells how far a batch has come, while a person watches."""

import time
from typing import TextIO

WIDTH = 30
_REDRAW_S = 0.1


class ProgressBar:
    """Counts prompts and tokens; draws only on a terminal. A context manager."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._is_shown = stream.isatty()
        self._started = time.monotonic()
        self._drawn = 0.0
        self._done = 0
        self._failed = 0
        self._tokens = 0

    def advance(self, num_tokens: int, *, has_failed: bool) -> None:
        """One more prompt has ended."""
        self._done += 1
        self._failed += has_failed
        self._tokens += num_tokens
        if self._is_shown and (self._done == self._total or time.monotonic() - self._drawn >= _REDRAW_S):
            self._draw()

    def summary(self) -> str:
        """The whole in one line."""
        seconds = time.monotonic() - self._started
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done} prompts{failed}, {self._tokens} tokens in {seconds:.1f} s ({self._rate():.1f} tokens/s)"

    def __enter__(self) -> "ProgressBar":
        if self._is_shown:
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        filled = WIDTH * self._done // max(1, self._total)
        bar = "█" * filled + "·" * (WIDTH - filled)
        failed = f" · {self._failed} failed" if self._failed else ""
        self._stream.write(
            f"\r\x1b[K{bar} {self._done}/{self._total} · {self._rate():.1f} tokens/s{failed}{self._left()}"
        )
        self._stream.flush()

    def _rate(self) -> float:
        return self._tokens / max(1e-9, time.monotonic() - self._started)

    def _left(self) -> str:
        if not self._done or self._done == self._total:
            return ""
        seconds = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        return f" · {seconds:.0f} s left"
