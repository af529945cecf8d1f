"""Random-weight models of every architecture, their transformers twins, and a driver of the decoder by hand."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.backends.backend import Model
from gpu_worker.backends.reference import ReferenceModel
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.loading.loader import LoadedModel, open_model
from gpu_worker.model.attention import AttentionLayout, Chunk
from gpu_worker.model.decoder import StepInput

CPU = torch.device("cpu")
VOCAB = 199

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Large enough that logits spread and a wrong position or head shows.
    "initializer_range": 0.15,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

MODELS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama2": lambda: LlamaConfig(**_SHAPE | {"num_key_value_heads": 6, "head_dim": 64}),
    "llama3-rope-scaling": lambda: LlamaConfig(**_SHAPE, head_dim=128, rope_parameters=_LLAMA3_ROPE),
    "llama-linear-rope": lambda: LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 3.0}
    ),
    "llama-all-biases": lambda: LlamaConfig(**_SHAPE, head_dim=80, attention_bias=True, mlp_bias=True),
    "smollm-tied": lambda: LlamaConfig(**_SHAPE | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "mistral": lambda: MistralConfig(**_SHAPE, head_dim=256, sliding_window=None),
    "mistral-sliding-window": lambda: MistralConfig(**_SHAPE, head_dim=64, sliding_window=21),
    "qwen2": lambda: Qwen2Config(**_SHAPE | {"tie_word_embeddings": True}),
    "qwen2-yarn": lambda: Qwen2Config(**_SHAPE, rope_parameters=_YARN_ROPE),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=96),
    "qwen3-mixed-windows": lambda: Qwen3Config(
        **_SHAPE,
        head_dim=64,
        use_sliding_window=True,
        sliding_window=17,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
}


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests share two cores; more threads only make the small shapes here slower."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@dataclass
class Twins:
    """One model on disk, as we load it and as transformers does."""

    folder: Path
    loaded: LoadedModel
    reference: Any

    @property
    def ours(self) -> ReferenceModel:
        return ReferenceModel(self.loaded)

    @property
    def source(self) -> ModelSource:
        return ModelSource(self.folder.name, SourceKind.HUGGINGFACE, self.folder)

    def reference_logits(self, tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.reference(torch.tensor([tokens])).logits[0]
        return logits


def randomise(model: Any, seed: int) -> None:
    """Norms and biases, which start as ones and zeros, get values that an omission would change."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
        elif name.endswith("bias"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twins]:
    """Makes, saves and loads a model of `MODELS` once."""
    made: dict[str, Twins] = {}

    def make(name: str) -> Twins:
        if name not in made:
            torch.manual_seed(len(name))
            reference = AutoModelForCausalLM.from_config(MODELS[name](), attn_implementation="eager").eval()
            randomise(reference, seed=7)
            folder = tmp_path_factory.mktemp(name)
            reference.save_pretrained(folder)
            source = ModelSource(name, SourceKind.HUGGINGFACE, folder)
            made[name] = Twins(folder, open_model(source).load(torch.float32, CPU), reference)
        return made[name]

    return make


@dataclass
class PagedDriver:
    """Runs a decoder step by step over a small cache whose free pages are NaN and whose block tables are shuffled."""

    model: Model
    num_blocks: int = 64
    block_size: int = 16
    seed: int = 0
    dtype: torch.dtype = torch.float32
    max_num_batched_tokens: int = 512
    tables: dict[int, list[int]] = field(default_factory=dict)
    lens: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        geometry = KvGeometry.of(self.model.config, self.block_size, self.dtype)
        self.cache = KvCache(geometry, self.num_blocks, CPU)
        self.cache.poison(torch.arange(self.num_blocks))
        self.free = list(range(self.num_blocks))
        random.Random(self.seed).shuffle(self.free)
        limits = BatchLimits(
            16, self.max_num_batched_tokens, 512, self.model.config.vocab_size, self.num_blocks, self.block_size
        )
        self.decoder = self.model.new_decoder(limits)

    def step(self, rows: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Computes each row's next tokens; rows of one token go as decodes. Returns each row's logits."""
        decodes = [row for row, tokens in rows.items() if len(tokens) == 1 and self.lens.get(row, 0)]
        order = decodes + [row for row in rows if row not in decodes]
        positions, chunks, start = [], [], 0
        for row in order:
            first, count = self.lens.get(row, 0), len(rows[row])
            self.lens[row] = first + count
            table = self.tables.setdefault(row, [])
            # One page more than needed: what lies past a row's end must not be read.
            while len(table) * self.block_size < self.lens[row] + self.block_size:
                table.append(self.free.pop())
            positions += [(row, position) for position in range(first, first + count)]
            if row not in decodes:
                chunks.append(Chunk(start, count, self.lens[row]))
            start += count
        hidden = self.decoder.forward(self._input(order, decodes, positions, chunks, rows), self.cache.pages)
        # A decoder may use its memory again.
        logits = self.decoder.logits(hidden).clone().split([len(rows[row]) for row in order])
        return dict(zip(order, logits, strict=True))

    def _input(
        self,
        order: list[int],
        decodes: list[int],
        positions: list[tuple[int, int]],
        chunks: list[Chunk],
        rows: dict[int, list[int]],
    ) -> StepInput:
        width = max(len(self.tables[row]) for row in order)
        tables = torch.tensor([self.tables[row] + [0] * (width - len(self.tables[row])) for row in order])
        return StepInput(
            token_ids=torch.tensor([token for row in order for token in rows[row]]),
            positions=torch.tensor([position for _, position in positions]),
            blocks=torch.tensor([self.tables[row][position // self.block_size] for row, position in positions]),
            offsets=torch.tensor([position % self.block_size for _, position in positions]),
            attention=AttentionLayout(
                tables.int(), np.array([self.lens[row] for row in decodes], dtype=np.int64), tuple(chunks)
            ),
        )


@pytest.fixture
def paged_driver() -> type[PagedDriver]:
    return PagedDriver


@pytest.fixture
def model_names() -> list[str]:
    return list(MODELS)


def random_tokens(count: int, seed: int) -> list[int]:
    """Token ids of the small vocabulary."""
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


@pytest.fixture
def tokens_of() -> Callable[[int, int], list[int]]:
    return random_tokens


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `architecture` runs for every model of `MODELS`."""
    if "architecture" in metafunc.fixturenames:
        metafunc.parametrize("architecture", list(MODELS))
