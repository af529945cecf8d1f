"""Matrix products with weights in 8 bits and a scale for each output channel."""

from dataclasses import dataclass

import torch

from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.device.int8_linear import int8_linear_kernel
from gpu_worker.kernels.triton.shapes import QUERY_DTYPES


@dataclass(frozen=True, slots=True)
class LinearTile:
    """How much one program takes: rows, output channels, inputs a step of its loop; threads and buffers."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


_TILES = (
    (16, LinearTile(16, 32, 128, 4, 4)),
    (64, LinearTile(64, 64, 128, 4, 3)),
)
"""By rows at most. Few rows are bound by the weights' bytes: many small programs read them at once."""
_MANY_ROWS = LinearTile(128, 128, 64, 8, 3)


class Int8Linear:
    """A `gpu_worker.model.linear.Linear`."""

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """As `gpu_worker.loading.int8.Int8Rows`; `bias` in the model's dtype."""
        self.codes = codes
        self.scale = scale
        self.bias = bias
        self.out_features = codes.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] to [num_tokens, out_features], same dtype."""
        return int8_linear(x, self.codes, self.scale, self.bias)


def linear_tile(num_rows: int) -> LinearTile:
    """Tile for a product of so many rows."""
    return next((tile for most, tile in _TILES if num_rows <= most), _MANY_ROWS)


def int8_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    tile: LinearTile | None = None,
) -> torch.Tensor:
    """``x (codes * scale)^T + bias``.

    `x` [M, K] bf16 or fp16, rows may have a stride; `codes` int8 [N, K] contiguous; `scale` float32 [N]; `bias` [N] in
    x's dtype. Returns [M, N] in x's dtype; sums are float32. Raises KernelArgumentError.
    """
    num_outputs, num_inputs = codes.shape
    check_tensor("x", x, (None, num_inputs), QUERY_DTYPES, x.device, row_stride_only=True)
    check_tensor("codes", codes, (num_outputs, num_inputs), (torch.int8,), x.device)
    check_tensor("scale", scale, (num_outputs,), (torch.float32,), x.device)
    if bias is not None:
        check_tensor("bias", bias, (num_outputs,), (x.dtype,), x.device)
    check_that(num_inputs > 0, "a product needs an input")
    num_rows = x.shape[0]
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    tile = linear_tile(num_rows) if tile is None else tile
    int8_linear_kernel[(-(-num_rows // tile.block_m), -(-num_outputs // tile.block_n))](
        x,
        codes,
        scale,
        bias,
        out,
        num_rows,
        x.stride(0),
        INPUTS=num_inputs,
        OUTPUTS=num_outputs,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        HAS_BIAS=bias is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def int8_linear_reference(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The same in plain torch and float64, rounded once."""
    wide = x.double() @ (codes.double() * scale.double()[:, None]).T
    return (wide if bias is None else wide + bias.double()).to(x.dtype)
