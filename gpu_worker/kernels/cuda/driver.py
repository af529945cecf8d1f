"""The CUDA driver API by ctypes: modules, functions, launches. A launch costs about two microseconds of Python."""

import ctypes
from collections.abc import Sequence

import torch

Argument = torch.Tensor | int | float | None
_POINTER = ctypes.c_void_p
_KINDS: dict[str, type[ctypes.c_void_p | ctypes.c_int32 | ctypes.c_int64 | ctypes.c_float]] = {
    "pointer": ctypes.c_void_p,
    "int": ctypes.c_int32,
    "long": ctypes.c_int64,
    "float": ctypes.c_float,
}


class DriverError(RuntimeError):
    """A call of the driver that failed, with its number and text."""


class Driver:
    """``libcuda``. The device's context is torch's; it must exist before a module is loaded."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        """Raises OSError when there is no driver."""
        self.library = ctypes.CDLL(path)
        self.library.cuLaunchKernel.argtypes = [_POINTER, *[ctypes.c_uint] * 7, _POINTER, _POINTER, _POINTER]

    def check(self, code: int) -> None:
        """Raises DriverError unless `code` is 0."""
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(f"CUDA driver error {code}: {text.value.decode() if text.value else 'unknown'}")


class Module:
    """A cubin that has been loaded. It stays loaded as long as the process lives."""

    def __init__(self, driver: Driver, cubin: bytes) -> None:
        """Raises DriverError, for instance for code of another architecture."""
        self.driver = driver
        self.handle = _POINTER()
        driver.check(driver.library.cuModuleLoadData(ctypes.byref(self.handle), cubin))


class Kernel:
    """A function of a module. Its parameters' kinds are told once, so that none is ever packed at a wrong width.

    Not thread-safe: the place of its arguments is kept from launch to launch.
    """

    def __init__(self, module: Module, name: str, kinds: Sequence[str]) -> None:
        """`kinds`: pointer, int (32 bits), long (64) or float for each parameter. Raises DriverError."""
        self._driver = module.driver
        self._name = name
        self._function = _POINTER()
        library = module.driver.library
        module.driver.check(library.cuModuleGetFunction(ctypes.byref(self._function), module.handle, name.encode()))
        self._values = [_KINDS[kind]() for kind in kinds]
        addresses = [ctypes.addressof(value) for value in self._values]
        self._places = (_POINTER * len(addresses))(*addresses)

    def launch(self, grid: tuple[int, int, int], num_threads: int, stream: int, arguments: Sequence[Argument]) -> None:
        """Enqueues it. A tensor goes by its address, None as a null pointer. Raises DriverError, TypeError."""
        if len(arguments) != len(self._values):
            raise TypeError(f"{self._name} takes {len(self._values)} arguments, got {len(arguments)}")
        for value, argument in zip(self._values, arguments, strict=True):
            value.value = argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
        places = ctypes.addressof(self._places)
        self._driver.check(
            self._driver.library.cuLaunchKernel(self._function, *grid, num_threads, 1, 1, 0, stream, places, None)
        )
