"""Picks the backend: what settings ask for, or the best that this machine has for this model."""

import structlog
import torch

from chairlift.runtime.settings import Settings
from gpu_worker.backends.backend import Backend
from gpu_worker.backends.device_choice import choose_device_backend
from gpu_worker.backends.native import NativeBackend, find_obstacle
from gpu_worker.backends.reference import ReferenceBackend
from gpu_worker.kernels.cpu.library import KernelsUnavailableError
from gpu_worker.loading.loader import ModelFiles
from gpu_worker.sizes import Sizes, UnusableSettingsError
from gpu_worker.threads import plan_threads


def choose_backend(settings: Settings, files: ModelFiles, sizes: Sizes) -> Backend:
    """The best kernels that the device has, else torch, which is said in one line.

    Raises UnusableSettingsError where settings insist on what is not to be had.
    """
    if settings.model.quantization == "gguf" and not files.has_blocks:
        raise UnusableSettingsError("model.quantization=gguf: the model's file has no blocks of Q4_0, Q4_1 or Q8_0")
    is_cuda = sizes.device.type == "cuda"
    try:
        backend: Backend = (
            choose_device_backend(settings, files, sizes) if is_cuda else _open_native(settings, files, sizes)
        )
    except KernelsUnavailableError as error:
        _refuse_less_than_asked(settings, sizes, str(error))
        if settings.worker.attention == "auto":
            event = "triton_kernels_unavailable" if is_cuda else "native_kernels_unavailable"
            structlog.get_logger().warning(event, reason=str(error), instead="reference")
        backend = ReferenceBackend(sizes.dtype, sizes.device)
    if settings.worker.deterministic and not backend.is_deterministic:
        raise UnusableSettingsError(f"worker.deterministic=true: not with {backend.name} kernels")
    return backend


def _open_native(settings: Settings, files: ModelFiles, sizes: Sizes) -> NativeBackend:
    """Raises KernelsUnavailableError."""
    if settings.worker.attention in ("reference", "triton", "cuda"):
        raise KernelsUnavailableError(f"worker.attention is {settings.worker.attention}")
    if obstacle := find_obstacle(files.config, sizes.block_size):
        raise KernelsUnavailableError(obstacle)
    quantization = "none" if settings.model.quantization == "auto" else settings.model.quantization
    worker = settings.worker
    threads = plan_threads(worker.num_threads, worker.thread_spin_us, worker.pin_threads)
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


def _refuse_less_than_asked(settings: Settings, sizes: Sizes, reason: str) -> None:
    wanted, quantization = settings.worker.attention, settings.model.quantization
    if wanted in ("triton", "cuda") and sizes.device.type == "cpu":
        raise UnusableSettingsError(f"worker.attention={wanted}: needs worker.device=cuda")
    if wanted in ("native", "triton", "cuda"):
        raise UnusableSettingsError(f"worker.attention={wanted}: {reason}")
    if quantization in ("int8", "gguf"):
        kernels = "triton" if sizes.device.type == "cuda" else "native"
        raise UnusableSettingsError(f"model.quantization={quantization} needs {kernels} kernels: {reason}")
