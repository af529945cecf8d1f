"""Picks the backend: what settings ask for, or the best that this machine has for this model."""

import structlog
import torch

from chairlift.runtime.settings import Settings
from gpu_worker.backends.backend import Backend
from gpu_worker.backends.device_choice import choose_device_backend
from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.backends.native import NativeBackend, find_obstacle
from gpu_worker.backends.reference import ReferenceBackend
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.sizes import Sizes, UnusableSettingsError
from gpu_worker.threads import ThreadPlan


def choose_backend(settings: Settings, files: ModelFiles, sizes: Sizes, threads: ThreadPlan) -> Backend:
    """The kernels asked for, or the best that the device has, else torch, which is said in one line.

    `threads`: those of native kernels.
    Raises UnusableSettingsError where settings insist on what is not to be had.
    """
    if settings.model.quantization == "gguf" and not files.has_blocks:
        raise UnusableSettingsError("model.quantization=gguf: the model's file has no blocks of Q4_0, Q4_1 or Q8_0")
    attention, device = settings.worker.attention, sizes.device.type
    backend: Backend
    match attention, device:
        case "reference", _:
            _refuse_to_drop_quantization(settings, "worker.attention is reference")
            backend = ReferenceBackend(sizes.dtype, sizes.device)
        case "native", "cuda":
            raise UnusableSettingsError("worker.attention=native: needs worker.device=cpu")
        case (("triton" | "cuda"), "cpu"):
            raise UnusableSettingsError(f"worker.attention={attention}: needs worker.device=cuda")
        case "auto", _:
            backend = _open_best(settings, files, sizes, threads)
        case _:
            try:
                backend = _open_kernels(settings, files, sizes, threads)
            except KernelsUnavailableError as error:
                raise UnusableSettingsError(f"worker.attention={attention}: {error}") from error
    if settings.worker.deterministic and not backend.is_deterministic:
        raise UnusableSettingsError(f"worker.deterministic=true: not with {backend.name} kernels")
    return backend


def _open_best(settings: Settings, files: ModelFiles, sizes: Sizes, threads: ThreadPlan) -> Backend:
    """Falls back to torch, unless that would not hold the weights as asked: raises UnusableSettingsError."""
    try:
        return _open_kernels(settings, files, sizes, threads)
    except KernelsUnavailableError as error:
        _refuse_to_drop_quantization(settings, str(error))
        event = "triton_kernels_unavailable" if sizes.device.type == "cuda" else "native_kernels_unavailable"
        structlog.get_logger().warning(event, reason=str(error), instead="reference")
        return ReferenceBackend(sizes.dtype, sizes.device)


def _open_kernels(settings: Settings, files: ModelFiles, sizes: Sizes, threads: ThreadPlan) -> Backend:
    """The device's own. Raises KernelsUnavailableError."""
    if sizes.device.type == "cuda":
        return choose_device_backend(settings, files, sizes)
    return _open_native(settings, files, sizes, threads)


def _open_native(settings: Settings, files: ModelFiles, sizes: Sizes, threads: ThreadPlan) -> NativeBackend:
    """Raises KernelsUnavailableError."""
    if obstacle := find_obstacle(files.config, sizes.block_size):
        raise KernelsUnavailableError(obstacle)
    quantization = "none" if settings.model.quantization == "auto" else settings.model.quantization
    backend = NativeBackend(sizes.dtype, quantization, threads)
    # What is left to torch is small: a second team of threads would only be in the way of the kernels' own.
    torch.set_num_threads(1)
    structlog.get_logger().info(
        "native_kernels_ready",
        instruction_set=backend.instruction_set,
        num_threads=threads.num_threads,
        spin_us=threads.spin_us,
        pinned_to=list(threads.cpus) or "no processor",
    )
    return backend


def _refuse_to_drop_quantization(settings: Settings, reason: str) -> None:
    quantization = settings.model.quantization
    if quantization in ("int8", "gguf"):
        is_cuda = settings.worker.device == "cuda" and quantization == "int8"
        kernels = "triton" if is_cuda else "native"
        raise UnusableSettingsError(f"model.quantization={quantization} needs {kernels} kernels: {reason}")
