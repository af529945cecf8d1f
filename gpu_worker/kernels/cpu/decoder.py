"""The forward pass in one C call a step: what `gpu_worker.model.decoder.Decoder` does operation by operation.

Beside speed it differs in rounding: the residual stream and what a kernel hands to itself stay float32. Its results
are batch-invariant: a token's hidden state has the same bits in any batch and any cut of its prefill.
"""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_worker.kernels.cpu.arguments import KernelArgumentError, address, dtype_code
from gpu_worker.kernels.cpu.attention import BLOCK_SIZE_MULTIPLE, row_bounds
from gpu_worker.kernels.cpu.library import DecoderArrays, DecoderShape, LayerArrays, Library, Step
from gpu_worker.kernels.cpu.packing import PackedLayer, PackedWeights
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.loading.config import ModelConfig
from gpu_worker.model.decoder import LayerPages, StepInput
from gpu_worker.model.rope import cos_sin_table

MAX_HEAD_DIM = 512


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step that buffers are taken for."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int


class CpuDecoder:
    """Packed weights and the buffers of a step. One caller at a time; the cache is the caller's."""

    def __init__(
        self,
        library: Library,
        team: ThreadTeam,
        config: ModelConfig,
        weights: PackedWeights,
        limits: StepLimits,
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is that of the KV pages, and of the weights unless they are quantised.

        Raises KernelArgumentError for a model that these kernels do not run, MemoryError.
        """
        self.config = config
        self.device = torch.device("cpu")
        self._library = library
        self._team = team
        self._limits = limits
        self._dtype = dtype
        self._weights = weights
        _check(config, weights, limits, dtype)
        self._cos_sin = cos_sin_table(config, limits.max_model_len, self.device)
        self._hidden = torch.zeros((limits.max_num_batched_tokens, config.hidden_size))
        self._pages: Sequence[LayerPages] | None = None
        self._page_addresses = (_addresses([]), _addresses([]))
        self._layers = (LayerArrays * config.num_layers)(
            *(_layer_arrays(layer, config.window(index)) for index, layer in enumerate(weights.layers))
        )
        self._decoder = self._create()
        weakref.finalize(self, library.decoder_destroy, self._decoder)

    def forward(self, step: StepInput, pages: Sequence[LayerPages]) -> torch.Tensor:
        """Hidden states [T, hidden_size] float32 after the last layer, before the final norm. Writes the step's KV.

        The result is this object's own buffer, good until the next call. Raises KernelArgumentError, MemoryError.
        """
        if pages is not self._pages:
            self._take_pages(pages)
        num_tokens = len(step.token_ids)
        if num_tokens > len(self._hidden):
            raise KernelArgumentError(f"a step of {num_tokens} tokens; buffers are for {len(self._hidden)}")
        starts, lens = row_bounds(step.attention)
        tables = step.attention.block_tables
        if starts[-1] != num_tokens or (len(lens) and lens.max() > tables.shape[1] * self._limits.block_size):
            raise KernelArgumentError(f"{num_tokens} tokens and tables {list(tables.shape)} do not fit the layout")
        ids = step.token_ids.long()
        call = Step(
            num_tokens=num_tokens,
            ids=address(ids, "token_ids", (num_tokens,), torch.int64),
            positions=address(step.positions, "positions", (num_tokens,), torch.int64),
            blocks=address(step.blocks, "blocks", (num_tokens,), torch.int64),
            offsets=address(step.offsets, "offsets", (num_tokens,), torch.int64),
            block_tables=address(tables, "block_tables", (len(lens), None), torch.int32, row_stride=True),
            table_stride=tables.stride(0),
            query_starts=starts.ctypes.data,
            kv_lens=lens.ctypes.data,
            num_rows=len(lens),
            k_pages=ctypes.addressof(self._page_addresses[0]),
            v_pages=ctypes.addressof(self._page_addresses[1]),
            hidden=self._hidden.data_ptr(),
        )
        if self._library.decoder_forward(self._decoder, self._team.pool, ctypes.byref(call)):
            raise MemoryError("attention found no memory for its scratch space")
        return self._hidden[:num_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden_size] float32 rows of `forward` to float32 logits [S, vocab_size]. Raises KernelArgumentError."""
        num_rows = hidden.shape[0]
        rows = address(hidden, "hidden", (num_rows, self.config.hidden_size), torch.float32)
        out = torch.empty((num_rows, self.config.vocab_size))
        self._library.decoder_logits(self._decoder, self._team.pool, rows, num_rows, out.data_ptr())
        return out

    def _take_pages(self, pages: Sequence[LayerPages]) -> None:
        config = self.config
        shape = (None, config.num_kv_heads, self._limits.block_size, config.head_dim)
        if len(pages) != config.num_layers:
            raise KernelArgumentError(f"pages of {len(pages)} layers; the model has {config.num_layers}")
        keys, values = (
            _addresses([address(layer[side], name, shape, self._dtype) for layer in pages])
            for side, name in enumerate(("k_pages", "v_pages"))
        )
        self._page_addresses = (keys, values)
        self._pages = pages

    def _create(self) -> int:
        config, limits, weights = self.config, self._limits, self._weights
        shape = DecoderShape(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=limits.block_size,
            dtype=dtype_code(torch.empty(0, dtype=self._dtype), "dtype"),
            max_tokens=limits.max_num_batched_tokens,
            max_rows=limits.max_num_seqs,
            norm_eps=config.norm_eps,
            attention_scale=config.head_dim**-0.5,
        )
        arrays = DecoderArrays(
            embedding=weights.embedding.weights,
            head=weights.head.weights,
            final_norm=_norm(weights.final_norm, config.hidden_size),
            cos_sin=self._cos_sin.data_ptr(),
            layers=ctypes.addressof(self._layers),
        )
        decoder = self._library.decoder_create(ctypes.byref(shape), ctypes.byref(arrays))
        if not decoder:
            raise MemoryError(f"no memory for the buffers of a step of {limits.max_num_batched_tokens} tokens")
        return int(decoder)


def _check(config: ModelConfig, weights: PackedWeights, limits: StepLimits, dtype: torch.dtype) -> None:
    q_size, kv_size, hidden, inner = config.q_size, config.kv_size, config.hidden_size, config.intermediate_size
    if config.head_dim % 2 or config.head_dim > MAX_HEAD_DIM:
        raise KernelArgumentError(f"head size {config.head_dim}: even ones up to {MAX_HEAD_DIM} are possible")
    if limits.block_size % BLOCK_SIZE_MULTIPLE:
        raise KernelArgumentError(f"block_size {limits.block_size} is no multiple of {BLOCK_SIZE_MULTIPLE}")
    wanted = [(weights.embedding, hidden, config.vocab_size), (weights.head, hidden, config.vocab_size)]
    for layer in weights.layers:
        wanted += [(layer.qkv, hidden, q_size + 2 * kv_size), (layer.output, q_size, hidden)]
        wanted += [(layer.gate_up, hidden, 2 * inner), (layer.down, inner, hidden)]
    for linear, num_inputs, num_outputs in wanted:
        if (linear.in_features, linear.out_features) != (num_inputs, num_outputs):
            raise KernelArgumentError(
                f"a layer of {linear.in_features} inputs and {linear.out_features} outputs; "
                f"wanted {num_inputs} and {num_outputs}"
            )
        if linear.kind.input_dtype not in (None, dtype):
            raise KernelArgumentError(f"{linear.kind.name} weights do not go with {dtype}")


def _layer_arrays(layer: PackedLayer, window: int | None) -> LayerArrays:
    return LayerArrays(
        qkv=layer.qkv.weights,
        output=layer.output.weights,
        gate_up=layer.gate_up.weights,
        down=layer.down.weights,
        input_norm=_norm(layer.input_norm, layer.qkv.in_features),
        post_attention_norm=_norm(layer.post_attention_norm, layer.qkv.in_features),
        q_norm=None if layer.q_norm is None else _norm(layer.q_norm, None),
        k_norm=None if layer.k_norm is None else _norm(layer.k_norm, None),
        window=window or 0,
    )


def _norm(weight: torch.Tensor, size: int | None) -> int:
    return address(weight, "norm", (size,), torch.float32)


def _addresses(values: list[int]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(values))(*values)
