"""The native kernels put together: what a decoder on the CPU takes instead of the torch operations."""

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
