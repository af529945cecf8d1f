"""The model on native kernels: weights packed tensor by tensor while they are read, one call a step."""

from dataclasses import dataclass

import torch

from gpu_worker.backends.native_decoder import NativeDecoder
from gpu_worker.backends.packed_assembler import PackedAssembler
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.kernels.cpu.attention import BLOCK_SIZE_MULTIPLE
from gpu_worker.kernels.cpu.decoder import MAX_HEAD_DIM, StepLimits
from gpu_worker.kernels.cpu.library import Library, load_library
from gpu_worker.kernels.cpu.linear import MAX_INPUTS, LinearKernels
from gpu_worker.kernels.cpu.packing import PackedWeights
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.loading.reader import Progress, no_progress
from gpu_worker.threads import ThreadPlan


@dataclass(frozen=True, slots=True)
class NativeModel:
    """Packed weights. A `Model`."""

    config: ModelConfig
    num_parameters: int
    weight_bytes: int
    _weights: PackedWeights
    _kernels: LinearKernels
    _dtype: torch.dtype

    def new_decoder(self, limits: BatchLimits) -> NativeDecoder:
        """As `Model.new_decoder`."""
        step = StepLimits(limits.max_model_len, limits.max_num_batched_tokens, limits.max_num_seqs, limits.block_size)
        return NativeDecoder(self._kernels.library, self._kernels.team, self.config, self._weights, step, self._dtype)


class NativeBackend:
    """A `Backend` of compiled kernels for this CPU, with a team of threads."""

    name = "native"
    is_deterministic = True

    def __init__(self, dtype: torch.dtype, quantization: str, threads: ThreadPlan) -> None:
        """`dtype` of KV pages, and of weights that are not quantised. Compiles the kernels where need be.

        Raises KernelsUnavailableError, whose one line says why.
        """
        self.quantization = quantization
        self._dtype = dtype
        self._library: Library = load_library()
        self._team = ThreadTeam(self._library, threads.num_threads, threads.spin_us, threads.cpus)

    @property
    def instruction_set(self) -> str:
        """Name of the build in use."""
        return self._library.instruction_set

    def load(self, files: ModelFiles, progress: Progress = no_progress) -> NativeModel:
        """As `Backend.load`."""
        kernels = LinearKernels(self._library, self._team)
        weights = PackedAssembler(files, self._dtype, self.quantization, kernels, progress).build()
        memory = kernels.memory.used_bytes
        return NativeModel(files.config, files.num_parameters, memory, weights, kernels, self._dtype)


def find_obstacle(config: ModelConfig, block_size: int) -> str | None:
    """Why native kernels cannot run a model; None where they can."""
    if config.head_dim > MAX_HEAD_DIM:
        return f"the model's head size is {config.head_dim}, above {MAX_HEAD_DIM}"
    if block_size % BLOCK_SIZE_MULTIPLE:
        return f"scheduler.block_size={block_size} is no multiple of {BLOCK_SIZE_MULTIPLE}"
    widest = max(config.hidden_size, config.intermediate_size, config.q_size)
    return f"a layer has {widest} inputs, above {MAX_INPUTS}" if widest > MAX_INPUTS else None
