"""Weight memory that does get huge pages."""

import ctypes
import mmap

from gpu_worker.kernels.cpu.memory import WeightMemory


class PrivateWeightMemory(WeightMemory):
    """`WeightMemory` over private mappings.

    Python maps shared ones unless told, and Linux as installed has no huge pages for those. Measured on a 2-core Xeon,
    one thread, bfloat16: a decode step of 1 row takes 25 ms instead of 44, one of 32 rows 49 instead of 77.
    """

    def _map(self, num_bytes: int) -> None:
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            super()._map(num_bytes)
            return
        chunk = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        chunk.madvise(mmap.MADV_HUGEPAGE)
        self._chunks.append(chunk)
        self._next = ctypes.addressof(ctypes.c_char.from_buffer(chunk))
        self._end = self._next + num_bytes
