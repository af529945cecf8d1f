"""Linear layers on packed weights: a second `Linear` beside `DenseLinear`, in bfloat16, float32, 8 and 4 bits.

Weights are packed once and exist in no other form; src/linear.h draws the layout. A row's result is the same bits
whatever the other rows are. Quantised weights take inputs quantised on the fly to signed bytes, by groups of 64 for
INT8 (src/quantise.h has why) and of 32 for GGUF's blocks (as llama.cpp does).
"""

import ctypes
import enum

import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError, address, dtype_code
from gpu_worker.kernels.cpu.library import Inputs, Library, LinearWeights, Outputs
from gpu_worker.kernels.cpu.memory import WeightMemory
from gpu_worker.kernels.cpu.threads import ThreadTeam

GROUP_INPUTS = 32
INT8_GROUP_INPUTS = 64
MAX_INPUTS = 65536
_PANEL = 16
_ROW_ALIGNMENT = 64
_SCALE_ROWS = 16


class WeightKind(enum.IntEnum):
    """How weights are held; the numbers are those of src/linear.h."""

    BFLOAT16 = 0
    FLOAT32 = 1
    INT8 = 2
    """Symmetric, a scale an output."""
    Q8_0 = 3
    """GGUF blocks, bit for bit."""
    Q4_0 = 4
    Q4_1 = 5

    @property
    def block_bytes(self) -> int | None:
        """Bytes of a GGUF block of 32 weights; None for kinds that are packed from numbers."""
        return _BLOCK_BYTES.get(self)

    @property
    def input_group(self) -> int:
        """Inputs that are quantised with one scale, for kinds that quantise them."""
        return GROUP_INPUTS if self.block_bytes else INT8_GROUP_INPUTS

    @property
    def input_dtype(self) -> torch.dtype | None:
        """The only dtype that inputs may have; None where they are quantised from either."""
        return _INPUT_DTYPES.get(self)


_BLOCK_BYTES = {WeightKind.Q8_0: 34, WeightKind.Q4_0: 18, WeightKind.Q4_1: 20}
_INPUT_DTYPES = {WeightKind.BFLOAT16: torch.bfloat16, WeightKind.FLOAT32: torch.float32}


class LinearKernels:
    """Packs weights for one library and team, into one `WeightMemory`."""

    def __init__(self, library: Library, team: ThreadTeam) -> None:
        self.library = library
        self.team = team
        self.memory = WeightMemory()

    def pack(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        kind: WeightKind | None = None,
        paired: bool = False,
    ) -> "PackedLinear":
        """`weight` [num_outputs, num_inputs] bfloat16 or float32, not needed afterwards; `kind` is its dtype or INT8.

        `paired`: the outputs are a gate's and as many of an up projection, whose product the fused step computes.
        Raises KernelArgumentError.
        """
        if kind is None:
            kind = WeightKind.BFLOAT16 if weight.dtype == torch.bfloat16 else WeightKind.FLOAT32
        if kind.block_bytes or kind.input_dtype not in (None, weight.dtype):
            raise KernelArgumentError(f"weights of {weight.dtype} cannot be packed as {kind.name}")
        rows = address(weight, "weight", (None, None), weight.dtype)
        return self._pack(kind, rows, dtype_code(weight, "weight"), tuple(weight.shape), bias, paired)

    def pack_blocks(
        self, blocks: torch.Tensor, kind: WeightKind, bias: torch.Tensor | None = None, paired: bool = False
    ) -> "PackedLinear":
        """`blocks` [num_outputs, bytes of a row's blocks] uint8, as a GGUF file has them.

        Raises KernelArgumentError.
        """
        if not kind.block_bytes or blocks.dim() != 2 or blocks.shape[1] % kind.block_bytes:
            raise KernelArgumentError(f"blocks of shape {list(blocks.shape)} cannot be packed as {kind.name}")
        rows = address(blocks, "blocks", (None, None), torch.uint8)
        shape = (blocks.shape[0], blocks.shape[1] // kind.block_bytes * GROUP_INPUTS)
        return self._pack(kind, rows, 0, shape, bias, paired)

    def _pack(
        self, kind: WeightKind, rows: int, dtype: int, shape: tuple[int, ...], bias: torch.Tensor | None, paired: bool
    ) -> "PackedLinear":
        num_outputs, num_inputs = shape
        if paired and num_outputs % 2:
            raise KernelArgumentError(f"{num_outputs} outputs cannot be paired")
        if not 1 <= num_inputs <= MAX_INPUTS or num_outputs < 1:
            raise KernelArgumentError(f"a layer of {num_inputs} inputs and {num_outputs} outputs; at most {MAX_INPUTS}")
        weights = LinearWeights(kind=kind, num_outputs=num_outputs, num_inputs=num_inputs, paired=paired)
        halves = 2 if paired else 1
        padded = -(-num_outputs // (halves * _PANEL)) * halves * _PANEL
        weights.panels = self.memory.take(self.library.panel_bytes(ctypes.byref(weights)))
        if kind is WeightKind.INT8:
            weights.scales = self.memory.take(4 * padded)
        if bias is not None:
            weights.bias = self.memory.take(4 * padded)
            _write_bias(weights, bias)
        self.library.pack(self.team.pool, ctypes.byref(weights), rows, dtype, weights.panels, weights.scales)
        return PackedLinear(self, weights)


class PackedLinear:
    """A `Linear`, and the rows of an embedding where both share weights."""

    def __init__(self, kernels: LinearKernels, weights: LinearWeights) -> None:
        self._kernels = kernels
        self.weights = weights
        self.kind = WeightKind(weights.kind)
        self.in_features: int = weights.num_inputs
        self.out_features: int = weights.num_outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] to [num_tokens, out_features], same dtype. Raises KernelArgumentError."""
        return self.multiply(x, x.dtype)

    def multiply(self, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        """As a call, with outputs rounded to bfloat16 or left float32."""
        product = self.prepare(x, out_dtype)
        product.run()
        return product.out

    def prepare(self, x: torch.Tensor, out_dtype: torch.dtype) -> "Product":
        """As `multiply`, all but the computing. Raises KernelArgumentError."""
        if self.kind.input_dtype not in (None, x.dtype):
            raise KernelArgumentError(f"x is {x.dtype}; {self.kind.name} weights take {self.kind.input_dtype}")
        address(x, "x", (None, self.in_features), x.dtype)
        return Product(self._kernels, self, x, out_dtype)

    def gather(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of the weights, [n, in_features], for `ids` [n] int64: the embedding. Raises KernelArgumentError."""
        pointer = address(ids, "ids", (None,), torch.int64)
        if self.weights.paired or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.out_features):
            raise KernelArgumentError(f"ids outside the {self.out_features} rows, or rows of paired weights")
        out = torch.empty((len(ids), self.in_features), dtype=dtype)
        library, pool = self._kernels.library, self._kernels.team.pool
        library.gather_rows(pool, ctypes.byref(self.weights), pointer, len(ids), dtype_code(out, "out"), out.data_ptr())
        return out


class Product:
    """One product, all its arguments ready: it may be run again and again, as a benchmark does.

    Each run takes what `x` holds then, but where its rows had to be padded, which makes a copy of it.
    """

    def __init__(self, kernels: LinearKernels, linear: PackedLinear, x: torch.Tensor, out_dtype: torch.dtype) -> None:
        """`x` [num_rows, linear.in_features], checked. See `PackedLinear.prepare`."""
        num_rows = x.shape[0]
        self.out = torch.empty((num_rows, linear.out_features), dtype=out_dtype)
        """[num_rows, linear.out_features], what it is once `run` was called."""
        self._library = kernels.library
        self._linear = linear
        self._quantise: tuple[object, ...] | None = None
        pool = kernels.team.pool
        if linear.kind.input_dtype:
            rows = _padded(x)
            self._owned: tuple[torch.Tensor, ...] = (rows,)
            inputs = Inputs(rows=rows.data_ptr(), row_bytes=rows.shape[1] * x.itemsize)
        else:
            self._owned = (x, *_quantised_inputs(num_rows, linear.in_features, linear.kind.input_group))
            codes, scales, sums = (part.data_ptr() for part in self._owned[1:])
            inputs = Inputs(rows=codes, row_bytes=self._owned[1].shape[1], scales=scales, sums=sums)
            source = dtype_code(x, "x"), x.data_ptr(), num_rows, linear.in_features
            self._quantise = (pool, linear.kind, *source, codes, scales, sums)
        outputs = Outputs(kind=0, dtype=dtype_code(self.out, "out"), rows=self.out.data_ptr(), stride=self.out.shape[1])
        self._multiply = (pool, ctypes.byref(linear.weights), ctypes.byref(inputs), num_rows, ctypes.byref(outputs))

    def run(self) -> None:
        """Computes `out`; quantises the inputs first where the weights are quantised."""
        if self._quantise is not None:
            self._library.quantise(*self._quantise)
        self._library.linear(*self._multiply)


def _padded(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy whose rows are filled up with zeros to whole lines."""
    row_bytes = x.shape[1] * x.itemsize
    if not row_bytes % _ROW_ALIGNMENT:
        return x
    padded = torch.zeros((x.shape[0], -(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT // x.itemsize), dtype=x.dtype)
    padded[:, : x.shape[1]] = x
    return padded


def _quantised_inputs(num_rows: int, width: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Room for codes int8, scales float32 of each group of `group` inputs, and sums of 4 bytes (src/linear.h)."""
    row_bytes = -(-width // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    groups = -(-num_rows // _SCALE_ROWS) * _SCALE_ROWS, -(-width // group)
    return (
        torch.empty((num_rows, row_bytes), dtype=torch.int8),
        torch.empty(groups, dtype=torch.float32),
        torch.empty(groups, dtype=torch.int32),
    )


def _write_bias(weights: LinearWeights, bias: torch.Tensor) -> None:
    """Puts a bias in panel order, padded."""
    address(bias, "bias", (weights.num_outputs,), bias.dtype)
    halves = bias.float().view(2 if weights.paired else 1, -1)
    num_panels = -(-halves.shape[1] // _PANEL)
    padded = torch.zeros((halves.shape[0], num_panels * _PANEL))
    padded[:, : halves.shape[1]] = halves
    ordered = padded.view(halves.shape[0], num_panels, _PANEL).transpose(0, 1).contiguous()
    ctypes.memmove(weights.bias, ordered.data_ptr(), ordered.numel() * 4)
