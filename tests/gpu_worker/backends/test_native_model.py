"""Native kernels give transformers' logits for every architecture, and the same bits however a row rides."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

Tokens = Callable[[int, int], list[int]]


def test_logits_equal_transformers(
    architecture: str, twins: Any, load_native: Any, paged_driver: Any, tokens_of: Tokens, steps: Any
) -> None:
    model = twins(architecture)
    tokens = tokens_of(150, 1)
    driver = paged_driver(load_native(model.source))
    found = steps(driver, tokens, [64, 1, 1, 33, 1, 50])
    wanted = model.reference_logits(tokens)
    assert wanted.std() > 0.1, "logits without spread would prove nothing"
    assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")], ids=str
)
def test_the_bits_of_a_row_do_not_depend_on_its_neighbours(
    dtype: str, quantization: str, twins: Any, load_native: Any, paged_driver: Any, tokens_of: Tokens, steps: Any
) -> None:
    """Alone and in one piece; beside others that come, grow and go, in pieces; and after its cache was lost."""
    number = getattr(torch, dtype)
    model = load_native(twins("qwen2").source, number, quantization)
    tokens = tokens_of(90, 1)
    alone = steps(paged_driver(model, dtype=number), tokens, [90])
    driver = paged_driver(model, dtype=number, seed=5, num_blocks=96)
    pieces, done = [], 0
    for step, cut in enumerate((17, 1, 31, 1, 40)):
        others = {1 + step: tokens_of(5 + 29 * step, step)} | {row: [row] for row in range(1, 1 + step)}
        pieces.append(driver.step({0: tokens[done : done + cut]} | others)[0])
        done += cut
    assert torch.equal(torch.cat(pieces), alone)
    driver.tables[0], driver.lens[0] = [], 0
    again = driver.step({0: tokens, 1: [7], 2: [8]})[0]
    assert torch.equal(again, alone)


@pytest.mark.parametrize(("dtype", "quantization", "largest"), [("bfloat16", "none", 1.0), ("bfloat16", "int8", 3.0)])
def test_error_against_float32(
    dtype: str, quantization: str, largest: float, twins: Any, load_native: Any, paged_driver: Any, tokens_of: Tokens
) -> None:
    """bfloat16 is no worse than torch's; 8-bit weights and inputs cost a small multiple of that."""
    model, number = twins("qwen3"), getattr(torch, dtype)
    tokens = tokens_of(60, 3)
    found = paged_driver(load_native(model.source, number, quantization), dtype=number).step({0: tokens})[0]
    wanted = model.reference_logits(tokens)
    theirs = copy.deepcopy(model.reference).bfloat16()(torch.tensor([tokens])).logits[0].float()
    ours, allowed = ((logits - wanted).norm() / wanted.norm() for logits in (found, theirs))
    print(f"relative error of {dtype}, {quantization}: {ours:.4f}; transformers in bfloat16: {allowed:.4f}")
    assert ours < largest * allowed
