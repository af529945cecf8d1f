"""The team of threads that native kernels run on."""

import ctypes
import weakref
from collections.abc import Sequence

from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu.library import Library

DEFAULT_SPIN_US = 50
"""How long a waiting thread spins before it sleeps. Longer than the gaps inside a step, shorter than those between."""
_MAX_THREADS = 256


class ThreadTeam:
    """Threads of one `Library`. One caller at a time; ends with the object."""

    def __init__(
        self, library: Library, num_threads: int, spin_us: float = DEFAULT_SPIN_US, cpus: Sequence[int] = ()
    ) -> None:
        """`num_threads` counts the caller's. `cpus`: the processor of each, the caller's not applied; empty: any.

        Raises KernelsUnavailableError when the system gives no threads.
        """
        if not 1 <= num_threads <= _MAX_THREADS:
            raise ValueError(f"num_threads is {num_threads}; 1 to {_MAX_THREADS} are possible")
        if cpus and len(cpus) != num_threads:
            raise ValueError(f"{len(cpus)} processors for {num_threads} threads")
        self.num_threads = num_threads
        places = (ctypes.c_int32 * num_threads)(*cpus) if cpus else None
        self.pool = library.pool_create(num_threads, int(spin_us * 1000), places)
        if not self.pool:
            raise KernelsUnavailableError(f"the system gave no {num_threads - 1} threads for the kernels")
        weakref.finalize(self, library.pool_destroy, self.pool)
