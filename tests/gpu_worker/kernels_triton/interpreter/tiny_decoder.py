"""A decoder of two layers with random weights, and attention that takes its numbers from the device."""

from collections.abc import Callable

import numpy as np
import torch

from gpu_worker.batch.limits import BatchLimits
from gpu_worker.kernels.cuda.backend import CudaAttention
from gpu_worker.kernels.triton.attention_arguments import PagedKv
from gpu_worker.kernels.triton.backend import TritonAttention, TritonOps
from gpu_worker.kernels.triton.decode import SplitWorkspace, paged_decode
from gpu_worker.kernels.triton.layout import DeviceAttentionLayout
from gpu_worker.kernels.triton.shapes import AttentionShape
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.loading.config import Architecture, ModelConfig
from gpu_worker.model.attention import AttentionLayout, Chunk, PreparedAttention
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.linear import DenseLinear
from gpu_worker.model.ops import TorchOps
from gpu_worker.model.torch_attention import TorchAttention
from gpu_worker.model.weights import DecoderWeights, LayerWeights

CPU = torch.device("cpu")
HEAD_DIM = 64
NAN_TOKEN = 150
"""Its embedding is NaN: whoever reads it has no logits."""

CONFIG = ModelConfig(
    architecture=Architecture.LLAMA,
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=3,
    num_kv_heads=1,
    head_dim=HEAD_DIM,
    context_length=128,
    norm_eps=1e-5,
    rope_theta=10_000.0,
    eos_token_ids=(2,),
)
LIMITS = BatchLimits(
    max_num_seqs=6,
    max_num_batched_tokens=64,
    max_model_len=96,
    vocab_size=160,
    num_blocks=40,
    block_size=16,
    num_host_blocks=12,
)


class HostViewAttention:
    """`TorchAttention` for rows that are described on the device: stands in for the kernels, and reads what they do."""

    name = "host-view"

    def __init__(self) -> None:
        self._reference = TorchAttention(CONFIG.num_kv_heads, LIMITS.block_size, LIMITS.num_blocks + 1)

    def prepare(self, layout: AttentionLayout) -> PreparedAttention:
        assert isinstance(layout, DeviceAttentionLayout)
        assert layout.kv_lens is not None
        assert layout.row_ids is not None
        assert layout.cu_q is not None
        num_decodes = layout.num_decodes
        kv_lens, borders = layout.kv_lens.numpy(), layout.cu_q.tolist()
        assert borders[: num_decodes + 1] == list(range(num_decodes + 1)), "a decode row has not one token"
        tables = layout.block_tables[layout.row_ids.clamp(min=0).long()]
        # A padding row: it sees the dummy page.
        is_padding = layout.row_ids < 0
        assert bool((layout.kv_lens[is_padding] == 0).all())
        tables[is_padding] = LIMITS.num_blocks
        chunks = [
            Chunk(borders[row], borders[row + 1] - borders[row], int(kv_lens[row]))
            for row in range(num_decodes, num_decodes + layout.num_chunk_rows)
        ]
        assert layout.max_kv_len >= kv_lens.max()
        lens = np.maximum(kv_lens[:num_decodes], 1).astype(np.int64)
        return self._reference.prepare(AttentionLayout(tables, lens, tuple(chunks)))


def make_weights(dtype: torch.dtype) -> DecoderWeights:
    """The same values each time."""
    generator = torch.Generator().manual_seed(11)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 0.2).to(dtype)

    def vector() -> torch.Tensor:
        return (torch.rand(64, generator=generator) + 0.5).to(dtype)

    layers = tuple(
        LayerWeights(
            vector(),
            DenseLinear(matrix(5 * HEAD_DIM, 64)),
            None,
            None,
            DenseLinear(matrix(64, 3 * HEAD_DIM)),
            vector(),
            DenseLinear(matrix(192, 64)),
            DenseLinear(matrix(64, 96)),
        )
        for _ in range(CONFIG.num_layers)
    )
    embedding = matrix(CONFIG.vocab_size, 64) * 4
    head = DenseLinear(embedding.clone() * 2)
    embedding[NAN_TOKEN] = float("nan")
    return DecoderWeights(embedding, layers, vector(), head)


def make_cache(dtype: torch.dtype) -> KvCache:
    """All NaN but the dummy page."""
    cache = KvCache(KvGeometry.of(CONFIG, LIMITS.block_size, dtype), LIMITS.num_blocks, CPU)
    cache.poison(torch.arange(LIMITS.num_blocks))
    return cache


def reference_decoder(dtype: torch.dtype) -> Decoder:
    """As the CPU's runner has it, in plain torch."""
    attention = TorchAttention(CONFIG.num_kv_heads, LIMITS.block_size, LIMITS.num_blocks + 1)
    return Decoder(CONFIG, make_weights(dtype), TorchOps(), attention, LIMITS.max_model_len)


def stand_in_decoder(dtype: torch.dtype) -> Decoder:
    """Plain torch behind the device's layout."""
    return Decoder(CONFIG, make_weights(dtype), TorchOps(), HostViewAttention(), LIMITS.max_model_len)


def triton_decoder(dtype: torch.dtype) -> Decoder:
    """The kernels themselves."""
    shape = AttentionShape(CONFIG.num_heads, CONFIG.num_kv_heads, HEAD_DIM, LIMITS.block_size)
    return Decoder(CONFIG, make_weights(dtype), TritonOps(), TritonAttention(shape, CPU), LIMITS.max_model_len)


class DecodeByTriton:
    """Takes the place of the CUDA C++ kernel, of which the emulation is proof: same arguments, other code."""

    def __call__(
        self,
        q: torch.Tensor,
        kv: PagedKv,
        part: torch.Tensor,
        lse: torch.Tensor,
        *,
        softmax_scale: float,
        window: int | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `CudaDecode`: it writes its parts, whatever the number of splits."""
        splits = part.shape[2]
        assert part.shape == (len(q), q.shape[1], splits, q.shape[2])
        assert lse.shape == (len(q), q.shape[1], splits)
        assert part.dtype == lse.dtype == torch.float32
        workspace = SplitWorkspace(splits, part, lse)
        return paged_decode(q, kv, workspace, softmax_scale=softmax_scale, window=window, out=out)


def cuda_decoder(dtype: torch.dtype) -> Decoder:
    """Decode rows by the other kernel, the rest by Triton's."""
    shape = AttentionShape(CONFIG.num_heads, CONFIG.num_kv_heads, HEAD_DIM, LIMITS.block_size)
    attention = CudaAttention(shape, CPU, DecodeByTriton())  # type: ignore[arg-type] # stands in for it
    return Decoder(CONFIG, make_weights(dtype), TritonOps(), attention, LIMITS.max_model_len)


DECODERS: dict[str, Callable[[torch.dtype], Decoder]] = {
    "stand-in": stand_in_decoder,
    "triton": triton_decoder,
    "cuda": cuda_decoder,
}
