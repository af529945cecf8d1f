"""Whether a CUDA device can run the model on Triton's kernels, and on the CUDA C++ ones where they are asked for."""

import importlib.util
from typing import TYPE_CHECKING

from chairlift.runtime.settings import Settings
from gpu_worker.backends.device import DeviceBackend
from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.memory import DeviceMemory, check_weights_fit
from gpu_worker.sizes import Sizes

if TYPE_CHECKING:
    from gpu_worker.kernels.cuda.decode import CudaDecode


def choose_device_backend(settings: Settings, files: ModelFiles, sizes: Sizes) -> DeviceBackend:
    """Raises KernelsUnavailableError, whose one line says why; DeviceMemoryError where the weights cannot fit."""
    wanted, quantization = settings.worker.attention, settings.model.quantization
    if importlib.util.find_spec("triton") is None:
        raise KernelsUnavailableError("the package triton is not installed")
    if quantization == "gguf":
        raise KernelsUnavailableError("blocks of GGUF files are for native kernels on a CPU")
    from gpu_worker.cuda_runner.backend import find_triton_obstacle

    if obstacle := find_triton_obstacle(files.config, sizes.dtype, sizes.block_size, sizes.device):
        raise KernelsUnavailableError(obstacle)
    held = "int8" if quantization == "int8" else "none"
    _check_memory(settings, files, sizes, held)
    if wanted != "cuda":
        return DeviceBackend(sizes.dtype, sizes.device, held)
    return DeviceBackend(sizes.dtype, sizes.device, held, _load_cuda_decode(files, sizes))


def _check_memory(settings: Settings, files: ModelFiles, sizes: Sizes, held: str) -> None:
    weight_bytes = files.num_parameters * sizes.dtype.itemsize
    if held == "int8":
        config = files.config
        dense = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
        weight_bytes = files.num_parameters - dense + dense * sizes.dtype.itemsize
    check_weights_fit(DeviceMemory.of(sizes.device), settings.worker.gpu_memory_utilization, weight_bytes)


def _load_cuda_decode(files: ModelFiles, sizes: Sizes) -> "CudaDecode":
    from gpu_worker.kernels.cuda.backend import load_decode
    from gpu_worker.kernels.cuda.compiler import CompilerError
    from gpu_worker.kernels.cuda.driver import DriverError
    from gpu_worker.kernels.triton.checks import KernelArgumentError
    from gpu_worker.kernels.triton.shapes import AttentionShape

    config = files.config
    try:
        shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, sizes.block_size)
        return load_decode(shape, sizes.device)
    except (KernelArgumentError, CompilerError, DriverError, OSError) as error:
        raise KernelsUnavailableError(str(error).splitlines()[0]) from None
