"""Makes Triton's interpreter right where it is silently wrong or refuses to run. For tests only.

- bf16 and fp8 are bit patterns in numpy: conversions go through torch, products are taken in float32, and any other
  arithmetic on them raises, so that a kernel which forgot to cast fails instead of computing on bit patterns.
- A scalar is an array of one element there; numpy from 2.4 on turns only 0-dimensional arrays into Python numbers, so
  `range` over a loaded bound fails.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH = {
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BIT_PATTERNS = (tl.bfloat16, tl.float8e4nv, tl.float8e5)
_NUMPY_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TORCH_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_ARITHMETIC = ("binary_op", "unary_op", "create_fma")


def install() -> None:
    """Repairs the interpreter of this process, once."""
    original_cast = interpreter.InterpreterBuilder.cast_impl
    original_patch = interpreter._patch_lang_tensor
    original_convert = interpreter._convert_float
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def cast(self: Any, source: Any, target: Any) -> Any:
        old, new = source.dtype.scalar, target.scalar
        if old in _TORCH and new in _TORCH and old != new:
            bits = _converted(source.data, old, new)
            return interpreter.TensorHandle(bits.view(interpreter._get_np_dtype(target)), new)
        return original_cast(self, source, target)

    def convert(data: Any, old: Any, new: Any, rounding: Any) -> Any:
        # Upstream truncates unless told otherwise.
        if rounding == toward_zero or old not in _TORCH or new not in _TORCH:
            return original_convert(data, old, new, rounding)
        return _converted(data, old, new)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        original_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(()).item()))

    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._patch_lang_tensor = patch_tensor
    interpreter._convert_float = convert
    for name in _ARITHMETIC:
        if hasattr(interpreter.InterpreterBuilder, name):
            _refuse_bit_patterns(name)


def _converted(data: Any, old: Any, new: Any) -> Any:
    """Bits of `data` after rounding to nearest even, in the shape of `data`."""
    array = np.ascontiguousarray(data).reshape(-1)
    value = torch.from_numpy(array.view(_NUMPY_BITS[array.dtype.itemsize]).copy()).view(_TORCH[old]).to(_TORCH[new])
    return value.view(_TORCH_BITS[value.element_size()]).numpy().reshape(np.shape(data))


def _wide(handle: Any) -> Any:
    if handle.dtype.scalar in _BIT_PATTERNS:
        return _converted(handle.data, handle.dtype.scalar, tl.float32).view(np.float32)
    return handle.data.astype(np.float32)


def _dot(self: Any, a: Any, b: Any, accumulator: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    product = np.matmul(_wide(a), _wide(b), dtype=accumulator.data.dtype)
    return interpreter.TensorHandle(product + accumulator.data, accumulator.dtype.scalar)


def _refuse_bit_patterns(name: str) -> None:
    original = getattr(interpreter.InterpreterBuilder, name)

    def refuse(self: Any, *arguments: Any) -> Any:
        for handle in arguments:
            if isinstance(handle, interpreter.TensorHandle) and handle.dtype.scalar in _BIT_PATTERNS:
                raise TypeError(f"{name} on {handle.dtype}: cast to float32 first")
        return original(self, *arguments)

    setattr(interpreter.InterpreterBuilder, name, refuse)
