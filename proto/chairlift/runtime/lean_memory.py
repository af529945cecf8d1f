"""How a process holds little memory: few heaps, and nothing for long that only its start needed.

All of it is advice: on a system that does not know it, nothing happens.
"""

import gc
import re
from collections.abc import Iterator
from pathlib import Path

from chairlift.runtime.libc import advise_memory, libc_function

_M_ARENA_MAX = -8  # of glibc's malloc.h
_NUM_ARENAS = 2
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")


def limit_arenas() -> None:
    """Threads share few heaps; each other one would keep what it once had. Call before threads start."""
    if (mallopt := libc_function("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def settle() -> None:
    """Call once when all is loaded. Everything alive then stays: later collections need not look at it.

    What the start freed goes back to the system, and pages of libraries leave this process until they are run again.
    """
    gc.collect()
    gc.freeze()
    give_back_freed()
    let_go_of_code()


def give_back_freed() -> None:
    """Returns freed memory to the system."""
    if (trim := libc_function("malloc_trim")) is not None:
        trim(0)


def let_go_of_code(smaps: Path = Path("/proc/self/smaps")) -> None:
    """Drops this process's hold on pages of code, most of which ran once: those of torch alone are 70 MB.

    They stay in the system's cache of files as long as it has room, and come back from there when they run.
    """
    for start, end in list(_pristine_code(smaps)):
        advise_memory(start, end, "MADV_DONTNEED")


def _pristine_code(smaps: Path) -> Iterator[tuple[int, int]]:
    """Mappings of files that can be run, cannot be written, and hold no page that differs from the file."""
    try:
        lines = smaps.read_text().splitlines()
    except OSError:
        return
    found: tuple[int, int] | None = None
    for line in lines:
        if (mapping := _MAPPING.match(line)) is not None:
            is_code = mapping[3] == "r-xp" and mapping[4] != "0"
            found = (int(mapping[1], 16), int(mapping[2], 16)) if is_code else None
        elif found is not None and line.startswith("Anonymous:"):
            if line.split()[1] == "0":
                yield found
            found = None
