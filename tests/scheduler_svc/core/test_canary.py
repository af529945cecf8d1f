"""What a broken invariant prints must not tell what a user wrote: it ends in logs and in bug reports."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core import invariants
from scheduler_svc.core.sequence import ForbiddenTransition, SequenceState

CANARY = [90_001, 90_017, 90_133, 90_177]


def _printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def _check_silent(text: str, world: Any) -> None:
    assert not [token for token in CANARY if str(token) in text]
    packed = b"".join(token.to_bytes(4, "little") for token in CANARY)
    assert repr(packed)[2:-1] not in text
    assert "canary-id" not in text
    assert "canary-salt" not in text
    assert world.core.state.requests


@pytest.fixture
def world(make_world: Callable[..., Any]) -> Any:
    made = make_world(geometry_changes={"vocab_size": 100_000})
    made.submit(CANARY * 3, request_id="canary-id", cache_salt="canary-salt", max_tokens=9)
    made.tick()
    made.step()
    return made


def test_a_forbidden_move_prints_states_only(world: Any) -> None:
    sequence = next(iter(world.core.state.requests.values())).sequences[0]
    with pytest.raises(ForbiddenTransition, match="then WAITING") as caught:
        sequence.move(SequenceState.WAITING)
    _check_silent(_printed(caught.value), world)


@pytest.mark.parametrize("break_it", [lambda one: setattr(one, "row", None), lambda one: one.blocks.pop()])
def test_a_broken_invariant_prints_counts_only(world: Any, break_it: Callable[[Any], object]) -> None:
    break_it(next(iter(world.core.state.requests.values())).sequences[0])
    with pytest.raises(AssertionError) as caught:
        invariants.check(world.core, 0)
    _check_silent(_printed(caught.value), world)
