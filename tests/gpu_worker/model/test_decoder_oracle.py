"""Logits equal transformers' in float32, however a prompt is cut, batched and spread over pages."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from gpu_worker.backends.reference import ReferenceModel
from gpu_worker.loading.loader import open_model

TOLERANCE = 1e-4


def assert_same_logits(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.isfinite(found).all(), "a position that the row does not own was read"
    spread = wanted.std()
    assert spread > 0.1, "logits without spread would prove nothing"
    assert (found - wanted).abs().max() < TOLERANCE


def test_whole_prefill(architecture: str, twins: Any, paged_driver: Any, tokens_of: Callable[..., list[int]]) -> None:
    model = twins(architecture)
    tokens = tokens_of(75, 1)
    found = paged_driver(model.ours).step({0: tokens})[0]
    assert_same_logits(found, model.reference_logits(tokens))


def test_chunks_and_decode_in_mixed_batches(
    architecture: str, twins: Any, paged_driver: Any, tokens_of: Callable[..., list[int]]
) -> None:
    """Three rows of unequal lengths: one decodes while the others are in the middle of their prompts."""
    model = twins(architecture)
    prompts = {row: tokens_of(length, row) for row, length in enumerate((150, 61, 37))}
    cuts = {0: [64, 64, 1, 16, 1, 1, 1, 1, 1], 1: [7, 1, 1, 30, 1, 1, 1, 1, 18], 2: [1, 1, 15, 16, 1, 1, 1, 1, 0]}
    driver = paged_driver(model.ours)
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for step in range(9):
        done = {row: sum(cuts[row][:step]) for row in prompts}
        rows = {row: prompts[row][done[row] : done[row] + cuts[row][step]] for row in prompts if cuts[row][step]}
        for row, logits in driver.step(rows).items():
            found[row].append(logits)
    for row, tokens in prompts.items():
        assert_same_logits(torch.cat(found[row]), model.reference_logits(tokens))


def test_decode_rows_of_very_different_lengths(
    twins: Any, paged_driver: Any, tokens_of: Callable[..., list[int]]
) -> None:
    """Rows from 1 to 300 tokens fall in several length groups of one decode step."""
    model = twins("llama3-rope-scaling")
    prompts = {row: tokens_of(length, row) for row, length in enumerate((1, 15, 16, 17, 127, 128, 129, 300))}
    driver = paged_driver(model.ours, num_blocks=96)
    driver.step(prompts)
    found = driver.step({row: [row + 5] for row in prompts})
    for row, tokens in prompts.items():
        assert_same_logits(found[row][0], model.reference_logits([*tokens, row + 5])[-1])


def test_bfloat16_stays_near_float32(twins: Any, paged_driver: Any, tokens_of: Callable[..., list[int]]) -> None:
    model = twins("qwen3")
    loaded = open_model(model.source).load(torch.bfloat16, torch.device("cpu"))
    driver = paged_driver(ReferenceModel(loaded), dtype=torch.bfloat16)
    tokens = tokens_of(60, 3)
    found = torch.cat([driver.step({0: tokens[:41]})[0], *(driver.step({0: [token]})[0] for token in tokens[41:])])
    wanted = model.reference_logits(tokens)
    theirs = copy.deepcopy(model.reference).bfloat16()(torch.tensor([tokens])).logits[0].float()
    our_error, their_error = ((logits - wanted).norm() / wanted.norm() for logits in (found, theirs))
    print(f"relative error in bfloat16: {our_error:.4f}; transformers' own: {their_error:.4f}")
    assert our_error < 1.25 * their_error
