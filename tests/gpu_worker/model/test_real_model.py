"""SmolLM2-135M from its GGUF: greedy output equals transformers' on the same dequantised weights."""

from typing import Any

import pytest
import torch

from chairlift.runtime.model_source import BUILT_IN, resolve_model
from gpu_worker.backends.reference import ReferenceModel
from gpu_worker.loading.loader import open_model

NUM_TOKENS = 12
PROMPT_LENGTHS = (1, 17, 64, 150)


@pytest.fixture(scope="module")
def real_models(transformers_smollm2: Any) -> tuple[Any, Any]:
    ours = open_model(resolve_model(BUILT_IN)).load(torch.float32, torch.device("cpu"))
    return ReferenceModel(ours), transformers_smollm2


def real_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1000, 48000, (count,), generator=generator).tolist()


def test_greedy_ids_equal_transformers(real_models: tuple[Any, Any], paged_driver: Any) -> None:
    """All prompts decode in one batch; transformers takes each alone. Ids must agree until its top two are near."""
    ours, reference = real_models
    assert ours.num_parameters == 134_515_008
    prompts = {row: real_tokens(length, row) for row, length in enumerate(PROMPT_LENGTHS)}
    driver = paged_driver(ours, num_blocks=40)
    logits = driver.step(prompts)
    found: dict[int, list[int]] = {row: [int(logits[row][-1].argmax())] for row in prompts}
    for _ in range(NUM_TOKENS - 1):
        logits = driver.step({row: found[row][-1:] for row in prompts})
        for row in prompts:
            found[row].append(int(logits[row][-1].argmax()))
    compared = 0
    for row, prompt in prompts.items():
        wanted = reference(torch.tensor([prompt + found[row][:-1]])).logits[0, len(prompt) - 1 :]
        top = wanted.topk(2).values
        is_clear = (top[:, 0] - top[:, 1] > 1e-3).tolist()
        for step in range(NUM_TOKENS):
            if is_clear[step]:
                assert found[row][step] == int(wanted[step].argmax())
                compared += 1
    assert compared > 0.9 * NUM_TOKENS * len(prompts)


def test_rotary_rows_are_in_order(real_models: tuple[Any, Any]) -> None:
    """The weights themselves equal those that transformers takes from the same file."""
    ours, reference = real_models
    weights = ours.loaded.weights
    layer, theirs = weights.layers[7], reference.model.layers[7]
    packed = torch.cat([getattr(theirs.self_attn, f"{name}_proj").weight for name in "qkv"])
    assert torch.equal(layer.qkv.weight, packed)
    assert torch.equal(weights.embedding, reference.lm_head.weight)
