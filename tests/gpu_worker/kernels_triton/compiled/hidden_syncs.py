"""A whole step on the meta device, where nothing has a value: whatever makes the host wait for one raises.

``python -m … hidden_syncs`` exits 1 when the decode step or a mixed step looks at a value, mixes devices, or when the
check itself misses a planted look.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch

from chairlift.ipc.device import Plan
from gpu_worker.batch.columns import unpack_plan
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.cuda_runner.device_step import DeviceStep
from gpu_worker.kernels.triton.backend import TritonAttention, TritonOps
from gpu_worker.kernels.triton.shapes import AttentionShape
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.loading.config import Architecture, ModelConfig
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.linear import DenseLinear
from gpu_worker.model.ops import HeadNorms, HeadShape, TokenSlots
from gpu_worker.model.weights import DecoderWeights, LayerWeights
from tests.gpu_worker.kernels_triton.compiled.launches import Launch, recorded

META = torch.device("meta")
CONFIG = ModelConfig(
    architecture=Architecture.QWEN3,
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=2,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_length=2048,
    norm_eps=1e-5,
    rope_theta=10_000.0,
    qk_norm=True,
    layer_windows=(None, 512),
)
LIMITS = BatchLimits(
    max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2048, vocab_size=49152, num_blocks=500, block_size=16
)

PLANTED: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.max().item(),
    "tolist": lambda x: x[:, 0].tolist(),
    "truth of a tensor": lambda x: x if x.sum() > 0 else None,
    "boolean index": lambda x: x[x[:, 0] > 0],
    "nonzero": lambda x: x.nonzero(),
    "copy to the host": lambda x: x.cpu(),
    "tensor of another device": lambda x: x + torch.ones(x.shape[1]),
}


class LookingOps(TritonOps):
    """Operations with a planted look at a value."""

    def __init__(self, look: Callable[[torch.Tensor], object]) -> None:
        self._look = look

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        slots: TokenSlots,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        self._look(qkv)
        return super().rotate_and_store(qkv, heads, norms, slots, k_pages, v_pages)


def make_step(ops: TritonOps) -> DeviceStep:
    """Everything of a device's step over weights without values."""
    decoder = Decoder(CONFIG, _weights(), ops, TritonAttention(_shape(), META), LIMITS.max_model_len)
    cache = KvCache(KvGeometry.of(CONFIG, LIMITS.block_size, torch.bfloat16), LIMITS.num_blocks, META)
    return DeviceStep(decoder, cache, LIMITS, max_logprobs=20)


def _shape() -> AttentionShape:
    return AttentionShape(CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim, LIMITS.block_size)


def _weights() -> DecoderWeights:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=META)

    hidden, head_dim, q_size = CONFIG.hidden_size, CONFIG.head_dim, CONFIG.q_size
    layer = LayerWeights(
        empty(hidden),
        DenseLinear(empty(q_size + 2 * CONFIG.kv_size, hidden)),
        empty(head_dim),
        empty(head_dim),
        DenseLinear(empty(hidden, q_size)),
        empty(hidden),
        DenseLinear(empty(2 * CONFIG.intermediate_size, hidden)),
        DenseLinear(empty(hidden, CONFIG.intermediate_size)),
    )
    embedding = empty(CONFIG.vocab_size, hidden)
    return DecoderWeights(embedding, (layer,) * CONFIG.num_layers, empty(hidden), DenseLinear(embedding))


def run_decode(step: DeviceStep) -> None:
    """What a decode graph holds, and the results of the step."""
    step.decode_body(32)()
    step.results(30, 5)


def run_mixed(step: DeviceStep) -> None:
    """A step with chunks, boarded penalties and copies, run eagerly."""
    decode, chunks = (np.array(words, "<u4").tobytes() for words in (range(5), (5, 100, 6, 30)))
    columns = unpack_plan(Plan(1, 1, decode=decode, chunks=chunks))
    step.count_tokens(3, 200)
    step.copy_blocks(4)
    step.run_mixed(columns, 6, 900, -1)
    step.results(6, -1)


def launches_of_step() -> list[Launch]:
    """What both kinds of step launch."""
    with recorded() as launches, torch.inference_mode():
        step = make_step(TritonOps())
        run_decode(step)
        run_mixed(step)
    return launches


def _raises(look: Callable[[torch.Tensor], object]) -> str | None:
    with recorded(), torch.inference_mode():
        step = make_step(LookingOps(look))
        try:
            run_decode(step)
        # What it raises is torch's choice; that it raises is the point.
        except Exception as error:  # noqa: BLE001
            return type(error).__name__
    return None


def main() -> int:
    """Exit code."""
    launches = launches_of_step()
    print(f"decode and mixed step: {len(launches)} launches, no value looked at")
    missed = 0
    for name, look in PLANTED.items():
        error = _raises(look)
        missed += error is None
        print(f"planted {name}: {'MISSED' if error is None else f'caught, {error}'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
