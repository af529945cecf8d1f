"""What a process asks of the C library about its own memory and threads: advice, which does nothing where unknown."""

import ctypes
import mmap
from typing import Any


def libc_function(name: str) -> Any:
    """That function; None where the C library has none."""
    return getattr(ctypes.CDLL(None), name, None)


def advise_memory(start: int, end: int, advice: str) -> None:
    """``madvise`` from one address to another, by the name that `mmap` has for the advice."""
    advise, number = libc_function("madvise"), getattr(mmap, advice, None)
    if advise is not None and number is not None:
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), number)
