"""The order of plans and their validity: whatever arrives, the runner answers, and a snapshot puts it right."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.ipc.codec import MalformedMessageError
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, NeedSnapshot, Plan, StepDone, StepFailed, to_worker_codec
from chairlift.ipc.tokens import pack_u32, unpack_u32

Tokens = Callable[[int, int], list[int]]


def running(new_planner: Any, tokens_of: Tokens) -> Any:
    """Rows 0 and 1 decode, row 2 has 5 of 12 prompt tokens computed."""
    planner = new_planner()
    for row in range(3):
        planner.board(row, tokens_of(12, row))
    planner.run({0: 12, 1: 12, 2: 5})
    return planner


def recovers(planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """A snapshot brings everything back as if nothing had happened."""
    planner.run({row: len(s.tokens) - s.computed for row, s in planner.sequences.items()}, reset=True)
    planner.run(dict.fromkeys(planner.sequences, 1))
    for row in planner.sequences:
        outputs = planner.outputs(row)
        assert outputs == greedy_reference("qwen2", tokens_of(12, row), len(outputs))


def test_a_plan_that_does_not_follow(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """Answered once; the second plan in flight behind it is dropped, a third asks again."""
    planner = running(new_planner, tokens_of)
    runner = planner.runner
    assert runner.execute(planner.plan({0: 1}, step=5)) == NeedSnapshot(77, 2)
    assert runner.execute(planner.plan({0: 1}, step=6)) is None
    assert isinstance(runner.execute(planner.plan({0: 1}, step=2)), NeedSnapshot)
    assert runner.counters.refused == 3
    recovers(planner, greedy_reference, tokens_of)


def test_the_first_plan_must_be_a_snapshot(new_planner: Any, tokens_of: Tokens) -> None:
    planner = new_planner()
    planner.board(0, tokens_of(3, 0))
    assert planner.runner.execute(planner.plan({0: 3}, reset=False)) == NeedSnapshot(77, 1)


def test_a_repeated_plan_is_refused(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    planner = running(new_planner, tokens_of)
    plan = planner.plan({0: 1})
    planner.note(plan, planner.runner.execute(plan))
    assert planner.runner.execute(plan) == NeedSnapshot(77, 3)
    recovers(planner, greedy_reference, tokens_of)


def test_plans_for_another_life_are_dropped(new_planner: Any, tokens_of: Tokens) -> None:
    planner = running(new_planner, tokens_of)
    assert planner.runner.execute(planner.plan({0: 1}, worker_epoch=78)) is None
    assert planner.runner.counters.foreign == 1
    planner.step -= 1
    planner.run({0: 1})


def test_after_a_failure_only_a_snapshot_is_taken(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    planner = running(new_planner, tokens_of)
    runner = planner.runner
    assert isinstance(runner.execute(planner.plan({0: 1}, decode=pack_u32([7]))), StepFailed)
    assert runner.execute(planner.plan({0: 1})) is None, "it was sent before the failure was known"
    assert isinstance(runner.execute(planner.plan({0: 1})), NeedSnapshot)
    recovers(planner, greedy_reference, tokens_of)


GOOD_ROW = BoardedRow(4, pack_u32([5, 6, 7]), 3, 0, pack_u32([3]), 0, SamplingParams())


def row_with(**changes: Any) -> dict[str, Any]:
    return {"boarded": (msgspec.structs.replace(GOOD_ROW, **changes),)}


def sampling_with(**changes: Any) -> dict[str, Any]:
    return row_with(sampling=SamplingParams(**changes))


INVALID: dict[str, dict[str, Any]] = {
    "ragged column": {"decode": b"\x00\x00\x00"},
    "ragged pairs": {"chunks": pack_u32([2])},
    "ragged swaps": {"swap_out": pack_u32([0])},
    "swap out of nowhere": {"swap_out": pack_u32([61, 0])},
    "swap out to nowhere": {"swap_out": pack_u32([0, 6])},
    "swap out far out of range": {"swap_out": pack_u32([0, 2**32 - 1])},
    "two swapped out to one place": {"swap_out": pack_u32([0, 2, 1, 2])},
    "swap in of nowhere": {"swap_in": pack_u32([6, 0])},
    "swap in to nowhere": {"swap_in": pack_u32([0, 61])},
    "two swapped in to one place": {"swap_out": pack_u32([0, 0, 1, 1]), "swap_in": pack_u32([0, 5, 1, 5])},
    "swap in of what was never out": {"swap_out": pack_u32([0, 0]), "swap_in": pack_u32([1, 5])},
    "unknown row decodes": {"decode": pack_u32([8])},
    "row far out of range": {"decode": pack_u32([2**32 - 1])},
    "empty row decodes": {"decode": pack_u32([5])},
    "row decodes twice": {"decode": pack_u32([0, 0])},
    "row decodes and chunks": {"decode": pack_u32([0]), "chunks": pack_u32([0, 1])},
    "prefill as decode": {"decode": pack_u32([2])},
    "chunk of nothing": {"chunks": pack_u32([2, 0])},
    "chunk beyond what is known": {"chunks": pack_u32([2, 8])},
    "chunk of four billion": {"chunks": pack_u32([2, 2**32 - 1])},
    "beyond the block table": {"chunks": pack_u32([2, 7]), "appended": b""},
    "unknown row leaves": {"left": pack_u32([6])},
    "row leaves twice": {"left": pack_u32([1, 1]), "decode": b""},
    "row leaves and decodes": {"left": pack_u32([0])},
    "block for an empty row": {"appended": pack_u32([6, 3])},
    "block out of range": {"appended": pack_u32([0, 61])},
    "block table too long": {"appended": pack_u32([value for block in range(30) for value in (0, block)])},
    "copy from nowhere": {"copies": pack_u32([61, 3])},
    "copy to nowhere": {"copies": pack_u32([3, 2**31])},
    "two copies to one block": {"copies": pack_u32([3, 5, 4, 5])},
    "boarded row out of range": row_with(row=8),
    "boarded row negative": row_with(row=-1),
    "boarded row is taken": row_with(row=1),
    "boarded twice": {"boarded": (GOOD_ROW, GOOD_ROW)},
    "no tokens": row_with(tokens=b""),
    "ragged tokens": row_with(tokens=b"\x01\x00"),
    "too many tokens": row_with(tokens=pack_u32([5] * 201)),
    "token outside the vocabulary": row_with(tokens=pack_u32([5, 199])),
    "prompt longer than tokens": row_with(prompt_len=4),
    "no prompt": row_with(prompt_len=0),
    "all computed": row_with(computed=3),
    "computed negative": row_with(computed=-1),
    "computed without blocks": row_with(computed=2, blocks=b""),
    "boarded block out of range": row_with(blocks=pack_u32([61])),
    "boarded table too long": row_with(blocks=pack_u32([1] * 26)),
    "choice": row_with(choice=-1),
    "temperature beyond float32": sampling_with(temperature=1e39),
    "bias beyond float32": sampling_with(logit_bias=((1, -1e39),)),
    "temperature": sampling_with(temperature=float("nan")),
    "negative temperature": sampling_with(temperature=-1.0),
    "top_k": sampling_with(top_k=-1),
    "top_p": sampling_with(top_p=1.5),
    "min_p": sampling_with(min_p=-0.5),
    "penalty": sampling_with(presence_penalty=float("inf")),
    "repetition": sampling_with(repetition_penalty=0.0),
    "seed": sampling_with(seed=1 << 64),
    "min_tokens": sampling_with(min_tokens=-3),
    "stop id": sampling_with(stop_token_ids=(199,)),
    "bias id": sampling_with(logit_bias=((-1, 1.0),)),
    "bias value": sampling_with(logit_bias=((1, float("nan")),)),
    "logprobs": sampling_with(logprobs=5000),
    "prompt logprobs": sampling_with(prompt_logprobs=-2),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_plans(name: str, new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """Each is a StepFailed with a reason, nothing on the device has changed, and a snapshot goes on from there."""
    planner = running(new_planner, tokens_of)
    kept = planner.runner._cache._pool.clone()
    result = planner.runner.execute(planner.plan({0: 1}, **INVALID[name]))
    assert isinstance(result, StepFailed), result
    assert result.kind == "invalid_plan"
    assert result.message
    assert set(unpack_u32(result.rows)) <= set(range(8))
    assert kept.equal(planner.runner._cache._pool) or kept.nan_to_num().equal(planner.runner._cache._pool.nan_to_num())
    recovers(planner, greedy_reference, tokens_of)


def test_too_many_tokens_in_a_step(new_planner: Any, tokens_of: Tokens) -> None:
    planner = new_planner()
    planner.board(0, tokens_of(150, 0))
    planner.board(1, tokens_of(150, 1))
    result = planner.runner.execute(planner.plan({0: 150, 1: 107}, reset=True))
    assert isinstance(result, StepFailed)
    assert "257 tokens" in result.message


def test_mutated_plans_never_break_the_runner(new_planner: Any, greedy_reference: Any, tokens_of: Tokens) -> None:
    """Any bytes that decode as a plan get an answer or are dropped, and a snapshot restores everything.

    Of one-byte mutants of a frame three quarters still decode, so that what they say must be checked.
    """
    planner = running(new_planner, tokens_of)
    codec = to_worker_codec()
    answered = {"done": 0, "failed": 0, "snapshot": 0, "dropped": 0, "malformed": 0}

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
    def mutate(where: int, value: int, boards: bool) -> None:
        snapshot = planner.plan({}, reset=True)
        assert isinstance(planner.runner.execute(snapshot), StepDone)
        plan = planner.plan({}, decode=pack_u32([0, 1]), **({"boarded": (GOOD_ROW,)} if boards else {}))
        frame = bytearray(codec.encode(plan))
        frame[where % len(frame)] = value
        try:
            message = codec.decode(bytes(frame))
        except MalformedMessageError:
            answered["malformed"] += 1
            return
        if not isinstance(message, Plan):
            return
        match planner.runner.execute(message):
            case StepDone():
                answered["done"] += 1
            case StepFailed():
                answered["failed"] += 1
            case NeedSnapshot():
                answered["snapshot"] += 1
            case None:
                answered["dropped"] += 1

    mutate()
    print(answered)
    assert answered["failed"] > 5
    planner.run({row: len(s.tokens) - s.computed for row, s in planner.sequences.items()}, reset=True)
