"""Tells on stderr what a starting or restarting stack is doing: a line a change, so that it mixes with logs.

That nobody reads it, or that a disk is full, keeps no child from being started again.
"""

import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from chairlift.runtime.line_stream import LineStream
from deploy.launcher.liveness import Silence

DETAIL_S = 2.0
"""Between two lines that differ in their numbers only."""
REMINDER_S = 10.0
"""Between two lines that say the same."""


class _Loading(msgspec.Struct):
    """A child that is not ready."""

    started: float
    told: float
    said: str = "starting"


class Progress:
    """Lines about the children. Not `verbose`: only what went wrong."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        verbose: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = LineStream(sys.stderr if stream is None else stream)
        self._verbose = verbose
        self._clock = clock
        self._loading: dict[str, _Loading] = {}

    def started(self, name: str, pid: int) -> None:
        """`name` was started as process `pid`."""
        now = self._clock()
        self._loading[name] = _Loading(started=now, told=now)
        if self._verbose:
            self.say(f"{name}: starting (pid {pid})")

    def loading(self, name: str, what: str) -> None:
        """`name` is not ready and says `what`; empty while it does not answer."""
        state = self._loading[name]
        now = self._clock()
        text = what or state.said
        if _without_numbers(text) != _without_numbers(state.said):
            pause = 0.0
        else:
            pause = DETAIL_S if text != state.said else REMINDER_S
        if now - state.told >= pause:
            if self._verbose:
                self.say(f"{name}: {text} ({now - state.started:.1f} s)")
            state.told, state.said = now, text

    def ready(self, name: str) -> None:
        """`name` can serve."""
        if self._verbose:
            self.say(f"{name}: ready after {self._clock() - self._loading[name].started:.1f} s")

    def restarting(self, name: str, how_it_ended: str, pause_s: float) -> None:
        """`name` died and is started again."""
        self.say(f"{name}: {how_it_ended}; restart in {pause_s:g} s")

    def hung(self, name: str, silence: Silence, reason: str) -> None:
        """`name` gave no sign of life for too long, for `reason` where it says one, and is killed."""
        said = f" ({reason})" if reason else ""
        self.say(f"{name}: hangs, not live for {silence.lasted_s:.1f} s{said}: killed ({silence.setting})")

    def killing(self, name: str, limit_s: float) -> None:
        """`name` did not end in time."""
        self.say(f"{name}: did not end within {limit_s:g} s; killed")

    def say(self, text: str) -> None:
        """One line."""
        self._stream.write(f"chairlift: {text}\n")


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())
