"""From rows of a GGUF tensor to numbers, with torch: the values that the `gguf` package gives, in a third of its time.

Each value is formed in float32, as there, and rounded once to what is wanted.
"""

from collections.abc import Callable, Mapping

import torch
from gguf import GGMLQuantizationType

_CODES_PER_HALF = 16


def copy_numbers(rows: torch.Tensor, kind: GGMLQuantizationType, target: torch.Tensor) -> None:
    """Writes the numbers of `rows` ([n, bytes a row] uint8) to `target` ([n, elements a row], any float dtype).

    Raises KeyError for a kind that is not in `READABLE`.
    """
    target.copy_(READABLE[kind](rows))


def _q8_0(rows: torch.Tensor) -> torch.Tensor:
    blocks = rows.view(len(rows), -1, 34)
    numbers = blocks[..., 2:].view(torch.int8) * _halves(blocks, 0)
    return numbers.view(len(rows), -1)


def _q4_0(rows: torch.Tensor) -> torch.Tensor:
    blocks = rows.view(len(rows), -1, 18)
    return _nibbles(blocks[..., 2:], _halves(blocks, 0), 8, None)


def _q4_1(rows: torch.Tensor) -> torch.Tensor:
    blocks = rows.view(len(rows), -1, 20)
    return _nibbles(blocks[..., 4:], _halves(blocks, 0), 0, _halves(blocks, 2))


def _nibbles(codes: torch.Tensor, scale: torch.Tensor, zero: int, minimum: torch.Tensor | None) -> torch.Tensor:
    """A byte holds element i (low half) and i + 16 (high half) of its block."""
    num_rows, num_blocks, _ = codes.shape
    numbers = torch.empty((num_rows, num_blocks, 2, _CODES_PER_HALF))
    for half, part in enumerate((codes & 15, codes >> 4)):
        signed = part.view(torch.int8) - zero if zero else part
        torch.mul(signed, scale, out=numbers[:, :, half])
    if minimum is not None:
        numbers += minimum[..., None]
    return numbers.view(num_rows, -1)


def _halves(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at a byte of each block, as float32 [rows, blocks, 1]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


READABLE: Mapping[GGMLQuantizationType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.F16: lambda rows: rows.view(torch.float16),
    GGMLQuantizationType.BF16: lambda rows: rows.view(torch.bfloat16),
    GGMLQuantizationType.F32: lambda rows: rows.view(torch.float32),
}
