"""SmolLM2-135M from its GGUF: greedy output equals transformers' on the same dequantised weights."""

import functools
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from chairlift.runtime.model_source import resolve_model
from gpu_worker.backends.reference import ReferenceModel
from gpu_worker.loading.loader import open_model

NUM_TOKENS = 12
PROMPT_LENGTHS = (1, 17, 64, 150)


@pytest.fixture(scope="module")
def real_models() -> tuple[Any, Any]:
    source = resolve_model("smollm2-135m")
    # Indexing a memory map once for each entry of the vocabulary, and the table of names made once a tensor, are two
    # thirds of the reference's load.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", lambda path, *_, **__: np.fromfile(path, np.uint8))
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        reference = AutoModelForCausalLM.from_pretrained(
            source.path.parent, gguf_file=source.path.name, dtype=torch.float32, attn_implementation="sdpa"
        )
    return ReferenceModel(open_model(source).load(torch.float32, torch.device("cpu"))), reference.eval()


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
