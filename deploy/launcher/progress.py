"""Tells on stderr what a starting or restarting stack is doing: a line a change, so that it mixes with logs."""

import sys
import time
from typing import TextIO

REMINDER_S = 10.0


class Progress:
    """Lines about the children. Not `verbose`: only what went wrong."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = True) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._verbose = verbose
        self._started: dict[str, float] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def started(self, name: str, pid: int) -> None:
        """`name` was started as process `pid`."""
        self._started[name] = time.monotonic()
        self._said[name] = ("", time.monotonic())
        if self._verbose:
            self.say(f"{name}: starting (pid {pid})")

    def loading(self, name: str, what: str) -> None:
        """`name` is not ready and says `what`; repeated news is told again only after a while."""
        said, when = self._said[name]
        now = time.monotonic()
        is_news = bool(what) and what != said
        if self._verbose and (is_news or now - when >= REMINDER_S):
            self.say(f"{name}: {what or said or 'starting'} ({now - self._started[name]:.1f} s)")
            when = now
        self._said[name] = (what or said, when)

    def ready(self, name: str) -> None:
        """`name` can serve."""
        if self._verbose:
            self.say(f"{name}: ready after {time.monotonic() - self._started[name]:.1f} s")

    def restarting(self, name: str, how_it_ended: str, pause_s: float) -> None:
        """`name` died and is started again."""
        self.say(f"{name}: {how_it_ended}; restart in {pause_s:g} s")

    def killing(self, name: str, limit_s: float) -> None:
        """`name` did not end in time."""
        self.say(f"{name}: did not end within {limit_s:g} s; killed")

    def say(self, text: str) -> None:
        """One line."""
        self._stream.write(f"chairlift: {text}\n")
        self._stream.flush()
