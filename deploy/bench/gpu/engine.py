"""The decode step of an 8B-shaped model with random weights: eager against graphs, tokens/s, share of the roofline.

The runner gets real plans, one ahead, as the scheduler sends them. Needs msgspec beside torch and triton.
"""

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan, StepDone
from deploy.bench.gpu.machine import Ceilings, Machine
from deploy.bench.gpu.report import Report
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.cuda_runner.graphs import Body, CudaGraphCapturer, GraphCapturer
from gpu_worker.cuda_runner.pending import PendingStep
from gpu_worker.cuda_runner.runner import CudaOptions, CudaRunner
from gpu_worker.kernels.triton.backend import TritonAttention, TritonOps
from gpu_worker.kernels.triton.shapes import AttentionShape
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.loading.config import Architecture, ModelConfig
from gpu_worker.model.decoder import Decoder
from gpu_worker.model.linear import DenseLinear
from gpu_worker.model.weights import DecoderWeights, LayerWeights

BF16 = torch.bfloat16
_EPOCH = 1
_BLOCK = 16
_AHEAD = 1
_ROWS_TO_JUDGE, _LEAST_SAME = 16, 0.85

Tokens = npt.NDArray[np.uint32]


class _Repeat:
    """Captures nothing: for a dry run."""

    def capture(self, body: Body) -> Body:
        return body


def model_8b() -> ModelConfig:
    """The shape of Llama 3.1 8B."""
    return ModelConfig(
        architecture=Architecture.LLAMA,
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        context_length=8192,
        norm_eps=1e-5,
        rope_theta=5e5,
    )


def model_tiny() -> ModelConfig:
    """For a dry run."""
    return ModelConfig(
        architecture=Architecture.LLAMA,
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=64,
        context_length=128,
        norm_eps=1e-5,
        rope_theta=1e4,
    )


def random_weights(config: ModelConfig, device: torch.device) -> DecoderWeights:
    """Values of the size that a trained model has, made on the device."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=BF16, device=device).normal_(0, columns**-0.5)

    ones = torch.ones(config.hidden_size, dtype=BF16, device=device)
    layers = tuple(
        LayerWeights(
            ones,
            DenseLinear(matrix(config.q_size + 2 * config.kv_size, config.hidden_size)),
            None,
            None,
            DenseLinear(matrix(config.hidden_size, config.q_size)),
            ones,
            DenseLinear(matrix(2 * config.intermediate_size, config.hidden_size)),
            DenseLinear(matrix(config.hidden_size, config.intermediate_size)),
        )
        for _ in range(config.num_layers)
    )
    embedding = matrix(config.vocab_size, config.hidden_size)
    return DecoderWeights(embedding, layers, ones, DenseLinear(matrix(config.vocab_size, config.hidden_size)))


@dataclass(frozen=True, slots=True)
class EngineSize:
    """What is run: rows, tokens that each already has, steps that are timed."""

    num_rows: int
    context: int
    steps: int


def measure_engine(machine: Machine, ceilings: Ceilings, report: Report, budget_s: float) -> None:
    """A line for each batch size, with graphs and without, as long as the time lasts."""
    config = model_tiny() if machine.is_dry else model_8b()
    started = time.monotonic()
    with torch.inference_mode():
        weights = random_weights(config, machine.device)
    machine.wait()
    report.add(
        "engine", model="8B-shaped, random" if not machine.is_dry else "tiny", weights_s=time.monotonic() - started
    )
    sizes = [EngineSize(3, 20, 3)] if machine.is_dry else [EngineSize(rows, 1024, 60) for rows in (1, 16, 64, 256)]
    for size in sizes:
        tokens: list[bytes] = []
        for has_graph in (True, False):
            if time.monotonic() - started > budget_s:
                report.skip("engine", f"batch {size.num_rows}: out of time")
                return
            tokens.append(_measure_one(machine, ceilings, report, config, weights, size, has_graph))
        _compare(report, size, *(np.frombuffer(part, "<u4") for part in tokens))


def _measure_one(
    machine: Machine,
    ceilings: Ceilings,
    report: Report,
    config: ModelConfig,
    weights: DecoderWeights,
    size: EngineSize,
    has_graph: bool,
) -> bytes:
    """The tokens of the first step; none where it does not fit."""
    limits = _limits(config, size)
    geometry = KvGeometry.of(config, _BLOCK, BF16)
    if not machine.is_dry and limits.num_blocks * geometry.block_bytes > torch.cuda.mem_get_info()[0] * 0.8:
        report.skip("engine", f"batch {size.num_rows}: the KV cache does not fit this device")
        return b""
    runner = _make_runner(machine, config, weights, limits, size.num_rows if has_graph else 0)
    tokens = _run(runner, _board(limits, size), _Decodes(size, 5, 2)).tokens[: 4 * size.num_rows]
    machine.wait()
    started = time.perf_counter()
    device_ns = _run(runner, None, _Decodes(size, size.steps, 7)).device_ns
    wall = time.perf_counter() - started
    step_s = wall / size.steps
    weight_bytes = (weights_elements(config) - config.vocab_size * config.hidden_size) * 2
    kv_bytes = size.num_rows * (size.context + size.steps // 2) * geometry.bytes_per_token
    report.add(
        "engine",
        batch=size.num_rows,
        context=size.context,
        graphs=has_graph,
        tokens_per_s=size.num_rows / step_s,
        step_ms=step_s * 1e3,
        share_of_roofline=(weight_bytes + kv_bytes) / ceilings.copy_bytes_per_s / step_s,
        device_idle=max(0.0, 1 - device_ns * 1e-9 / wall),
        row_state_MiB=runner.state_bytes >> 20,
    )
    return tokens


def _compare(report: Report, size: EngineSize, with_graph: Tokens, without: Tokens) -> None:
    """The first step with a graph and without it: sums over other splits may turn a token whose rival is as likely."""
    if not len(with_graph):
        return
    same = float((with_graph == without).mean())
    report.add("engine", batch=size.num_rows, same_tokens_with_graph=same)
    if size.num_rows >= _ROWS_TO_JUDGE and same < _LEAST_SAME:
        report.fail("engine", f"batch {size.num_rows}: {same:.2f} of a graph's tokens are those without it")


def weights_elements(config: ModelConfig) -> int:
    """Elements of all matrices, embedding and head apart."""
    layer = (config.q_size + 2 * config.kv_size) * config.hidden_size + config.q_size * config.hidden_size
    layer += 3 * config.intermediate_size * config.hidden_size
    return config.num_layers * layer + 2 * config.vocab_size * config.hidden_size


def _limits(config: ModelConfig, size: EngineSize) -> BatchLimits:
    longest = size.context + size.steps + 20
    blocks = -(-longest // _BLOCK)
    return BatchLimits(
        size.num_rows, max(size.num_rows, 64), longest, config.vocab_size, size.num_rows * blocks, _BLOCK
    )


def _make_runner(
    machine: Machine, config: ModelConfig, weights: DecoderWeights, limits: BatchLimits, bucket: int
) -> CudaRunner:
    cache = KvCache(KvGeometry.of(config, _BLOCK, BF16), limits.num_blocks, machine.device)
    # The same each time, so that what runs over it can be compared.
    torch.manual_seed(7)
    for k_pages, v_pages in cache.pages:
        k_pages.normal_()
        v_pages.normal_()
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, _BLOCK)
    attention = TritonAttention(shape, machine.device)
    decoder = Decoder(config, weights, TritonOps(), attention, limits.max_model_len)
    capturer: GraphCapturer = _Repeat() if machine.is_dry else CudaGraphCapturer(machine.device)
    options = CudaOptions((bucket,) if bucket else ())
    return CudaRunner(decoder, cache, limits, _EPOCH, options, capturer)


def _board(limits: BatchLimits, size: EngineSize) -> Plan:
    """All rows, as if their prompts had been computed: what lies in the cache is random."""
    generator = np.random.default_rng(1)
    per_row = limits.num_blocks // size.num_rows
    order = generator.permutation(limits.num_blocks)
    rows = []
    for row in range(size.num_rows):
        tokens = generator.integers(0, limits.vocab_size, size.context)
        blocks = order[row * per_row : (row + 1) * per_row]
        params = SamplingParams(temperature=1.0, seed=row, ignore_eos=True)
        rows.append(BoardedRow(row, _pack(tokens), size.context, size.context - 1, _pack(blocks), 0, params))
    return Plan(_EPOCH, 1, True, boarded=tuple(rows), decode=_pack(np.arange(size.num_rows)))


@dataclass(frozen=True, slots=True)
class _Decodes:
    """So many plans in which every row decodes, numbered from `first_step`."""

    size: EngineSize
    count: int
    first_step: int

    def plans(self) -> list[Plan]:
        rows = _pack(np.arange(self.size.num_rows))
        return [Plan(_EPOCH, self.first_step + index, decode=rows) for index in range(self.count)]


@dataclass(slots=True)
class _Outcome:
    """Of several steps."""

    device_ns: int = 0
    """Time that the device worked."""
    tokens: bytes = b""

    def add(self, done: StepDone) -> None:
        self.device_ns += done.device_ns
        self.tokens += done.sampled


def _run(runner: CudaRunner, first: Plan | None, decodes: _Decodes) -> _Outcome:
    """Runs the plans, one ahead."""
    pending: deque[PendingStep] = deque()
    outcome = _Outcome()
    for plan in ([first] if first is not None else []) + decodes.plans():
        launched = runner.launch(plan)
        if not isinstance(launched, PendingStep):
            raise RuntimeError(f"step {plan.step} was not taken: {launched}")
        pending.append(launched)
        if len(pending) > _AHEAD:
            outcome.add(_finish(runner, pending.popleft()))
    while pending:
        outcome.add(_finish(runner, pending.popleft()))
    return outcome


def _finish(runner: CudaRunner, pending: PendingStep) -> StepDone:
    done = runner.finish(pending)
    if not isinstance(done, StepDone):
        raise RuntimeError(f"step {pending.plan.step} gave {done}")
    return done


def _pack(values: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> bytes:
    return values.astype("<u4").tobytes()
