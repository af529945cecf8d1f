"""What the wrappers launch, recorded instead of run: they are called on the meta device, whose tensors hold nothing.

A wrapper that looked at a value would raise there, so a recorded launch also proves that it made the host wait for
nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import JITFunction

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Launch:
    """One kernel with what its compilation depends on."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, int]

    @property
    def key(self) -> str:
        """Equal for launches that compile to the same code."""
        return repr((self.kernel.__name__, self.signature, self.constants, self.attributes, self.options))


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Launches made inside, in order."""
    launches: list[Launch] = []
    original = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        assert all(size > 0 for size in grid), f"{self.__name__} launched with grid {grid}"
        launches.append(_launch_of(self, arguments, named))

    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = original


def launches_of(call: Callable[[], object]) -> list[Launch]:
    """What one call launches."""
    with recorded() as launches:
        call()
    return launches


def _launch_of(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Launch:
    options = {name: named.pop(name) for name in _OPTIONS if name in named}
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    assert set(values) == set(kernel.arg_names), f"{kernel.__name__}: arguments do not match"
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for parameter in kernel.params:
        name, value = parameter.name, values[parameter.name]
        is_special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and is_special):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0 and is_special):
            attributes[(parameter.num,)] = [["tt.divisibility", 16]]
    return Launch(kernel, signature, constants, attributes, options)


def _type_of(value: Any) -> str:
    match value:
        case torch.Tensor():
            assert value.device.type == "meta", "a tensor came from another device"
            return _POINTERS[value.dtype]
        case float():
            return "fp32"
        case int():
            return "i32" if -(2**31) <= value < 2**31 else "i64"
        case _:
            raise TypeError(f"argument of {type(value)}")
