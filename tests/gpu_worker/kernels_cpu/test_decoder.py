"""The fused step against the torch decoder and transformers, and the same bits in any batch and any cut."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_worker.backends.native import NativeModel
from gpu_worker.backends.packed_assembler import PackedAssembler
from gpu_worker.kernels.cpu.arguments import KernelArgumentError
from gpu_worker.kernels.cpu.decoder import CpuDecoder, StepLimits
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.linear import LinearKernels
from gpu_worker.kernels.cpu.threads import ThreadTeam
from gpu_worker.loading.loader import open_model
from gpu_worker.loading.reader import no_progress

# Every switch of the configuration at least once.
ARCHITECTURES = ["smollm-tied", "llama3-rope-scaling", "llama-all-biases", "mistral-sliding-window", "qwen3"]

MakeDriver = Callable[..., Any]


@pytest.fixture
def load(library: Library, team: ThreadTeam) -> Callable[..., NativeModel]:
    def make(pair: Any, dtype: torch.dtype = torch.float32, quantization: str = "none") -> NativeModel:
        files, kernels = open_model(pair.source), LinearKernels(library, team)
        weights = PackedAssembler(files, dtype, quantization, kernels, no_progress).build()
        return NativeModel(files.config, files.num_parameters, kernels.memory.used_bytes, weights, kernels, dtype)

    return make


@pytest.fixture
def driver_of(paged_driver: Any, load: Callable[..., NativeModel]) -> MakeDriver:
    """A paged driver over the fused decoder; its free pages are NaN."""

    def make(pair: Any, dtype: torch.dtype = torch.float32, quantization: str = "none") -> Any:
        return paged_driver(load(pair, dtype, quantization), dtype=dtype, max_num_batched_tokens=200)

    return make


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_logits_are_transformers(twins: Any, driver_of: MakeDriver, tokens_of: Any, name: str) -> None:
    pair = twins(name)
    driver, tokens = driver_of(pair), tokens_of(70, 1)
    logits = torch.cat([driver.step({0: part})[0] for part in (tokens[:40], tokens[40:69], tokens[69:])])
    torch.testing.assert_close(logits, pair.reference_logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [(torch.float32, "none"), (torch.bfloat16, "none"), (torch.bfloat16, "int8")],
    ids=["f32", "bf16", "int8"],
)
def test_bits_do_not_depend_on_company_or_cut(
    twins: Any, driver_of: MakeDriver, tokens_of: Any, dtype: torch.dtype, quantization: str
) -> None:
    tokens = tokens_of(90, 2)
    alone = driver_of(twins("smollm-tied"), dtype, quantization)
    want = torch.cat([alone.step({0: tokens[:89]})[0], alone.step({0: tokens[89:]})[0]])
    crowd = driver_of(twins("smollm-tied"), dtype, quantization)
    crowd.step({1: tokens_of(33, 3), 2: tokens_of(5, 4)})
    got, done = [], 0
    for count in (1, 30, 16, 1, 41, 1):
        steps = crowd.step({1: tokens_of(1, 5), 0: tokens[done : done + count], 2: tokens_of(1 + done % 3, 6)})
        got.append(steps[0])
        done += count
    assert torch.equal(torch.cat(got), want)


def test_bfloat16_and_int8_stay_close_to_float32(twins: Any, driver_of: MakeDriver, tokens_of: Any) -> None:
    pair, tokens = twins("qwen2"), tokens_of(80, 7)
    want = pair.reference_logits(tokens)
    for quantization, tolerance in (("none", 0.02), ("int8", 0.1)):
        got = driver_of(pair, torch.bfloat16, quantization).step({0: tokens})[0]
        assert ((got - want).norm() / want.norm()).item() < tolerance


def test_steps_that_do_not_fit_are_refused(twins: Any, driver_of: MakeDriver, tokens_of: Any) -> None:
    driver = driver_of(twins("smollm-tied"))
    with pytest.raises(KernelArgumentError, match="a step of 201 tokens; buffers are for 200"):
        driver.step({0: tokens_of(201, 0)})
    with pytest.raises(KernelArgumentError, match="hidden has shape"):
        driver.decoder.logits(torch.zeros(2, 95))
    driver.cache.pages = driver.cache.pages[:2]
    with pytest.raises(KernelArgumentError, match="pages of 2 layers; the model has 3"):
        driver.step({1: tokens_of(3, 0)})


def test_sizes_that_kernels_cannot_take_are_refused(
    library: Library, team: ThreadTeam, twins: Any, load: Callable[..., NativeModel]
) -> None:
    model = load(twins("smollm-tied"))
    with pytest.raises(KernelArgumentError, match="block_size 24 is no multiple of 16"):
        CpuDecoder(library, team, model.config, model._weights, StepLimits(64, 64, 4, 24), torch.float32)
    with pytest.raises(KernelArgumentError, match="FLOAT32 weights do not go with"):
        CpuDecoder(library, team, model.config, model._weights, StepLimits(64, 64, 4, 16), torch.bfloat16)
