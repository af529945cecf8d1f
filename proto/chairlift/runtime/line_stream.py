"""Lines to a terminal, file or pipe that may fail: a full disk or a reader that has gone costs lines, never the writer.

Knows no log. What a process is for goes on without anybody who reads what it says.
"""

import os
import threading
from typing import TextIO


class LineStream:
    """Writes through to the system at once, one call a text, so that lines of several processes do not mix.

    Nothing raises, and nothing stays behind in a buffer to fail at the process's end. Any thread may write.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is one of the process's own; None, as Python has it where the descriptor is closed, loses all."""
        self._stream = stream
        self._lock = threading.Lock()
        self._num_lost = 0

    @property
    def num_lost(self) -> int:
        """Texts lost since the last one that was written."""
        return self._num_lost

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def write(self, text: str) -> int:
        """The whole text or, where that fails, a part of it or nothing. Returns its length, as streams do."""
        with self._lock:
            try:
                self._write(text)
            except (OSError, ValueError):  # ValueError: it was closed
                self._num_lost += 1
            else:
                self._num_lost = 0
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def _write(self, text: str) -> None:
        if self._stream is None:
            raise OSError("there is no stream")
        try:
            descriptor = self._stream.fileno()
        except OSError:  # one in memory
            self._stream.write(text)
            return
        rest = memoryview(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
