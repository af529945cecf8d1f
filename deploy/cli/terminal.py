"""Whether and how to write for a person's eyes."""

import os
from typing import TextIO


def is_coloured(stream: TextIO) -> bool:
    """Whether colour is welcome: on a terminal, unless it or the user (NO_COLOR) says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Style:
    """Marks text for a terminal, and leaves it alone elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._is_on = is_coloured(stream)

    def bold(self, text: str) -> str:
        """Stands out."""
        return self._mark("1", text)

    def prompt(self, text: str) -> str:
        """Stands out where a line is edited: readline is told which characters take no room."""
        return f"\x01\x1b[1m\x02{text}\x01\x1b[0m\x02" if self._is_on else text

    def dim(self, text: str) -> str:
        """Stands back."""
        return self._mark("2", text)

    def error(self, text: str) -> str:
        """Went wrong."""
        return self._mark("31", text)

    def _mark(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_on else text
