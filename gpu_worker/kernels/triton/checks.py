"""Checks of kernel arguments: what a kernel would read wrongly or out of bounds is refused with its name and shape."""

from collections.abc import Sequence

import torch


class KernelArgumentError(ValueError):
    """A tensor or number that a kernel cannot take. The message names the argument, what it is and what is wanted."""


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    *,
    row_stride_only: bool = False,
) -> None:
    """Raises KernelArgumentError unless `tensor` has this shape (None: any size), one of the dtypes and the device.

    It must be contiguous; with `row_stride_only` its first dimension may have any stride.
    """
    if tensor.dim() != len(shape) or any(
        want not in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
    ):
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise KernelArgumentError(f"{name} has shape {list(tensor.shape)}, wanted [{wanted}]")
    if tensor.dtype not in dtypes:
        raise KernelArgumentError(f"{name} is {tensor.dtype}, wanted {' or '.join(map(str, dtypes))}")
    if tensor.device != device:
        raise KernelArgumentError(f"{name} is on {tensor.device}, wanted {device}")
    contiguous_part = tensor[0] if row_stride_only and tensor.shape[0] > 0 else tensor
    if not contiguous_part.is_contiguous():
        raise KernelArgumentError(
            f"{name} has strides {tensor.stride()} over shape {list(tensor.shape)}: not contiguous"
        )


def check_that(condition: bool, message: str) -> None:
    """Raises KernelArgumentError with the message unless the condition holds."""
    if not condition:
        raise KernelArgumentError(message)
