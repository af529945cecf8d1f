"""A word of memory that a process shares with its supervisor: until when it lives, unless it shows so again.

To read it wakes nobody, and it runs out by itself where a process hangs, stands still or is gone. Times are those of
the system's monotonic clock, in seconds. Knows nothing of what is alive.
"""

import mmap
import os
import tempfile
from typing import Self

LIFE_SIGN_ENV = "CHAIRLIFT_LIFE_SIGN_FD"
"""Descriptor of the word, set by a supervisor for its children."""

_BYTES = 8


class LifeSign:
    """One word, as either side sees it."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` stays the caller's. Raises OSError or ValueError where it is no such memory."""
        self._word = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")

    @classmethod
    def inherited(cls) -> Self | None:
        """This process's own; None where no supervisor asks for one. Raises as the constructor does."""
        descriptor = os.environ.get(LIFE_SIGN_ENV)
        return cls(int(descriptor)) if descriptor else None

    @property
    def until(self) -> float:
        """Until when the process lives, by what it showed last; 0 before it has shown anything."""
        return self._word[0]

    def show(self, until: float) -> None:
        """This process lives until then at least."""
        self._word[0] = until


def open_life_sign_memory() -> int:
    """A descriptor of new memory for one word, which is the caller's to close."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("life-sign")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, _BYTES)
    return descriptor
