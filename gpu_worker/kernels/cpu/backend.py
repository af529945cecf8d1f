"""Each native kernel by itself, behind the interfaces that its torch reference has.

For tests, which compare the two over a grid of shapes, and for `chairlift bench kernels`, which times them. A step of
the service calls the same kernels in C++ (decoder.py), where 200 calls through Python would cost as much as they do.
"""

from dataclasses import dataclass

from gpu_worker.kernels.cpu.attention import CpuAttention
from gpu_worker.kernels.cpu.library import Library, load_library
from gpu_worker.kernels.cpu.ops import CpuOps
from gpu_worker.kernels.cpu.threads import ThreadTeam


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """One library and one team of threads behind every kernel. One caller at a time."""

    library: Library
    team: ThreadTeam
    ops: CpuOps
    attention: CpuAttention

    @property
    def instruction_set(self) -> str:
        """Name of the build in use."""
        return self.library.instruction_set


def open_cpu_kernels(num_threads: int, instruction_set: str | None = None) -> CpuKernels:
    """Loads the best kernels for this machine (compiling them at first use) and starts their threads.

    `num_threads` counts the caller's. Raises KernelsUnavailableError, whose one line is the notice to print before
    going on with `TorchOps` and `TorchAttention`.
    """
    library = load_library(instruction_set)
    team = ThreadTeam(library, num_threads)
    return CpuKernels(library, team, CpuOps(library, team), CpuAttention(library, team))
