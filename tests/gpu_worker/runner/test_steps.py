"""What steps compute: greedy output equals transformers' however rows board, chunk, decode, leave and come back."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import EndKind, StepFailed
from chairlift.ipc.tokens import pack_u32, unpack_u32
from gpu_worker.faults import FaultInjector

GREEDY = SamplingParams(temperature=0)
Tokens = Callable[[int, int], list[int]]


def test_continuous_batch_equals_transformers(
    architecture: str, new_planner: Any, greedy_reference: Any, tokens_of: Tokens
) -> None:
    """One row decodes while another is prefilled in chunks; a third takes the seat of the first when that leaves."""
    planner = new_planner(architecture)
    prompts = {0: tokens_of(20, 1), 1: tokens_of(45, 2)}
    planner.board(0, prompts[0])
    planner.run({0: 20})
    planner.board(1, prompts[1])
    for chunk in (16, 16, 13):
        planner.run({0: 1, 1: chunk})
    planner.run({0: 1, 1: 1})
    assert planner.outputs(0) == greedy_reference(architecture, prompts[0], 5)
    planner.leave(0)
    prompts[2] = tokens_of(1, 3)
    planner.board(0, prompts[2])
    planner.run({1: 1, 0: 1})
    planner.run({0: 1, 1: 1})
    assert planner.outputs(0) == greedy_reference(architecture, prompts[2], 2)
    assert planner.outputs(1) == greedy_reference(architecture, prompts[1], 4)


def test_rows_may_be_left_out_of_a_step(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    planner = new_planner()
    prompts = [tokens_of(9, row) for row in range(3)]
    for row, prompt in enumerate(prompts):
        planner.board(row, prompt)
    for work in ({0: 9, 2: 4}, {2: 5, 1: 9, 0: 1}, {1: 1}, {}, {2: 1, 0: 1}, {1: 1, 2: 1}):
        planner.run(work)
    for row, prompt in enumerate(prompts):
        assert planner.outputs(row) == greedy_reference("qwen2", prompt, 3)


def test_a_long_run_of_the_same_rows(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """The usual step goes on from the tensors of the last: over borders of blocks, and past what they have room for."""
    planner = new_planner()
    prompts = [tokens_of(9, 1), tokens_of(3, 2)]
    for row, prompt in zip((5, 2), prompts, strict=True):
        planner.board(row, prompt)
    planner.generate(75)
    assert planner.runner._steady is not None
    for row, prompt in zip((5, 2), prompts, strict=True):
        assert planner.outputs(row) == greedy_reference("qwen2", prompt, 75)


def test_a_usual_step_is_checked_as_any_other(new_planner: Any, tokens_of: Tokens) -> None:
    planner = new_planner()
    planner.board(0, tokens_of(6, 1))
    planner.generate(3)
    result = planner.runner.execute(planner.plan({0: 1}, appended=b""))
    assert isinstance(result, StepFailed)
    assert result.message == "rows 0: beyond the block table"


def test_cached_prefix_is_not_computed_again(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """A second row uses the first's full blocks: only what comes after them is computed."""
    planner = new_planner()
    prefix = tokens_of(32, 1)
    planner.board(0, prefix + tokens_of(3, 2))
    planner.run({0: 35})
    other = prefix + tokens_of(6, 3)
    planner.board(1, other, computed=32, blocks=list(planner.sequences[0].blocks[:4]))
    planner.run({0: 1, 1: 6})
    planner.run({0: 1, 1: 1})
    assert planner.outputs(1) == greedy_reference("qwen2", other, 2)
    assert planner.outputs(0) == greedy_reference("qwen2", prefix + tokens_of(3, 2), 3)


def test_copy_on_write_before_the_step_that_writes(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """Two choices of one prompt: each computes the last prompt token in its own copy of the last block."""
    planner = new_planner()
    prompt = tokens_of(21, 4)
    planner.board(0, prompt)
    planner.run({0: 20})
    shared = planner.sequences[0].blocks
    own = planner.free.pop()
    planner.board(1, prompt, computed=20, blocks=[*shared[:2], own], choice=1)
    planner.copies = [shared[2], own]
    planner.run({0: 1, 1: 1})
    planner.run({0: 1, 1: 1})
    wanted = greedy_reference("qwen2", prompt, 2)
    assert planner.outputs(0) == planner.outputs(1) == wanted


def test_recompute_after_preemption_gives_the_same_samples(new_planner: Any, tokens_of: Tokens) -> None:
    """Seeded sampling with penalties, interrupted, put in another row and other blocks, computed again in chunks."""
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=99, repetition_penalty=1.1, frequency_penalty=0.2)
    prompt = tokens_of(18, 5)
    whole = new_planner()
    whole.board(0, prompt, params)
    whole.generate(12)
    parted = new_planner()
    parted.board(0, prompt, params)
    parted.board(1, tokens_of(30, 6), SamplingParams(seed=1))
    parted.generate(5)
    earlier = parted.leave(0)
    parted.board(6, earlier.tokens, params, prompt_len=18)
    for work in ({6: 10, 1: 1}, {6: 10}, {6: 3, 1: 1}):
        parted.run(work)
    for _ in range(6):
        parted.run({6: 1, 1: 1})
    assert parted.outputs(6) == whole.outputs(0)


def test_n_choices_differ_and_repeat(new_planner: Any, tokens_of: Tokens) -> None:
    prompt = tokens_of(10, 1)
    runs = []
    for rows in ((0, 1, 2), (5, 3, 4)):
        planner = new_planner()
        for choice, row in enumerate(rows):
            planner.board(row, prompt, SamplingParams(temperature=2.0, seed=5), choice=choice)
        planner.generate(8)
        runs.append([planner.outputs(row) for row in rows])
    assert runs[0] == runs[1]
    assert len({tuple(output) for output in runs[0]}) == 3


def test_ends_are_marked(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    prompt = tokens_of(12, 8)
    first = greedy_reference("qwen2", prompt, 1)[0]
    eos_bias = ((2, 100.0),)
    planner = new_planner()
    planner.board(3, prompt, msgspec.structs.replace(GREEDY, stop_token_ids=(first,)))
    planner.board(1, prompt, msgspec.structs.replace(GREEDY, logit_bias=eos_bias))
    planner.board(2, prompt, msgspec.structs.replace(GREEDY, logit_bias=eos_bias, ignore_eos=True))
    planner.board(0, prompt, msgspec.structs.replace(GREEDY, logit_bias=eos_bias, min_tokens=1))
    result = planner.run({3: 12, 1: 12, 2: 12, 0: 12})
    ids = list(unpack_u32(result.sampled))
    assert ids[:3] == [first, 2, 2]
    assert ids[3] != 2
    assert list(unpack_u32(result.ends)) == [0, EndKind.STOP_TOKEN, 1, EndKind.EOS]
    assert list(unpack_u32(planner.run({0: 1}).ends)) == [0, EndKind.EOS]


def test_logprobs_of_sampled_and_prompt_tokens(new_planner: Any, twins: Any, tokens_of: Tokens, floats: Any) -> None:
    """Prompt log-probabilities come chunk by chunk and join without gap; the last logits are the first output's."""
    prompt = tokens_of(30, 2)
    planner = new_planner()
    planner.board(0, tokens_of(5, 3))
    planner.board(1, prompt, SamplingParams(temperature=0, logprobs=2, prompt_logprobs=1))
    results = [planner.run(work) for work in ({0: 5, 1: 7}, {0: 1, 1: 22}, {1: 1, 0: 1}, {0: 1, 1: 1})]
    wanted = torch.log_softmax(twins("qwen2").reference_logits(planner.sequences[1].tokens[:-1]), dim=-1)
    parts = [part for result in results for part in result.prompt_logprobs]
    assert [(part.row, part.offset, part.width) for part in parts] == [(1, 1, 2), (1, 8, 2)]
    ids = [token for part in parts for token in unpack_u32(part.token_ids)]
    logprobs = [value for part in parts for value in floats(part.logprobs)]
    assert ids[::2] == prompt[1:]
    assert ids[1::2] == wanted[:29].argmax(dim=1).tolist()
    assert logprobs[::2] == pytest.approx([float(wanted[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-4)
    (first,) = results[2].logprobs
    (second,) = results[3].logprobs
    # Row 0 decodes and so comes first in the result.
    assert (first.index, second.index) == (1, 1)
    assert unpack_u32(first.token_ids)[0] == planner.outputs(1)[0]
    assert floats(first.logprobs) == pytest.approx(
        [float(wanted[29].max()), *wanted[29].topk(2).values.tolist()], abs=1e-4
    )


def test_no_more_than_the_context_length(new_planner: Any, tokens_of: Tokens) -> None:
    """The last token of a full context is sampled; a step beyond it is refused."""
    planner = new_planner()
    planner.board(0, tokens_of(199, 1))
    planner.generate(2)
    assert len(planner.outputs(0)) == 2
    result = planner.runner.execute(planner.plan({0: 1}))
    assert isinstance(result, StepFailed)
    assert result.kind == "invalid_plan"


def test_nan_names_its_rows(new_planner: Any, tokens_of: Tokens) -> None:
    """KV of one row is spoilt: the step fails and names that row, so that its neighbours can go on without it."""
    planner = new_planner()
    for row in range(3):
        planner.board(row, tokens_of(10, row))
    planner.generate(1)
    planner.runner._cache.poison(torch.tensor(planner.sequences[1].blocks[:1]))
    result = planner.runner.execute(planner.plan({0: 1, 1: 1, 2: 1}))
    assert isinstance(result, StepFailed)
    assert (result.kind, list(unpack_u32(result.rows))) == ("exception", [1])
    planner.leave(1)
    planner.run({0: 1, 2: 1}, reset=True)


def test_injected_fault_hits_steps_with_the_marked_prompt(new_planner: Any, tokens_of: Tokens) -> None:
    marked = [30, 31, 42, 33]
    planner = new_planner(faults=FaultInjector(42))
    planner.board(0, [token for token in tokens_of(12, 1) if token != 42])
    planner.generate(2)
    planner.board(1, marked)
    planner.run({0: 1})
    result = planner.runner.execute(planner.plan({0: 1, 1: 4}))
    assert isinstance(result, StepFailed)
    assert result.kind == "exception"
    assert "42" not in result.message.replace(":42", "")
    planner.leave(1)
    planner.run({0: 1}, reset=True)


def test_fault_injector_from_the_environment() -> None:
    assert not FaultInjector.from_environ({}).is_armed
    assert FaultInjector.from_environ({"CHAIRLIFT_FAULT_TOKEN": "7"}).is_armed
    with pytest.raises(ValueError, match="seven"):
        FaultInjector.from_environ({"CHAIRLIFT_FAULT_TOKEN": "seven"})


def test_results_of_steps_without_samples(new_planner: Any, tokens_of: Tokens) -> None:
    planner = new_planner()
    planner.board(0, tokens_of(40, 1))
    result = planner.run({0: 20})
    assert (result.sampled, result.ends, result.device_ns > 0, result.host_ns > 0) == (b"", b"", True, True)
    result = planner.run({})
    assert (result.sampled, result.device_ns) == (b"", 0)
    assert planner.runner.counters.steps == planner.runner.last_step == 2
    assert pack_u32([]) == b""
