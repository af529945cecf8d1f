"""Checks of tensors before their addresses go to C, where nothing is checked any more."""

from collections.abc import Sequence

import torch

_DTYPES = {torch.bfloat16: 0, torch.float32: 1}


class KernelArgumentError(ValueError):
    """A tensor that a kernel cannot take. The message names it, what it is and what is wanted."""


def dtype_code(tensor: torch.Tensor, name: str) -> int:
    """The number that C knows a dtype by. Raises KernelArgumentError for other dtypes than bfloat16 and float32."""
    code = _DTYPES.get(tensor.dtype)
    if code is None:
        raise KernelArgumentError(f"{name} is {tensor.dtype}; kernels know bfloat16 and float32")
    return code


def address(
    tensor: torch.Tensor, name: str, shape: Sequence[int | None], dtype: torch.dtype, row_stride: bool = False
) -> int:
    """Address of a CPU tensor's data after checks. None in `shape` stands for any size.

    The tensor must be contiguous; with `row_stride` the first dimension alone may have any stride of one or more rows.
    Raises KernelArgumentError.
    """
    if tensor.dtype != dtype or tensor.device.type != "cpu":
        raise KernelArgumentError(f"{name} is {tensor.dtype} on {tensor.device}; wanted {dtype} on cpu")
    if tensor.dim() != len(shape) or any(
        want is not None and have != want for have, want in zip(tensor.shape, shape, strict=True)
    ):
        raise KernelArgumentError(f"{name} has shape {list(tensor.shape)}; wanted {list(shape)}")
    if not _is_dense(tensor, row_stride):
        raise KernelArgumentError(
            f"{name} has strides {tensor.stride()} for shape {list(tensor.shape)}; not contiguous"
        )
    return tensor.data_ptr()


def _is_dense(tensor: torch.Tensor, row_stride: bool) -> bool:
    if tensor.is_contiguous():
        return True
    return row_stride and tensor.dim() > 1 and tensor.stride(0) > 0 and tensor[0].is_contiguous()
