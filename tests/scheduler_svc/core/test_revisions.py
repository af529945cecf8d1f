"""Knobs change as numbered revisions; a guard takes a bad one back by itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.ipc.common import Reason
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import ConfigRefused, ConfigRevised
from scheduler_svc.core.revisions import MAX_HISTORY, Guard, GuardMetric, Origin, Revision
from scheduler_svc.core.spread import Spread

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000


def change(world: "World", guard: Guard | None = None, expected: int | None = None, **knobs: Any) -> Any:
    config = msgspec.structs.replace(world.core.config, **knobs)
    effects = world.feed(events.ConfigChanged(config, expected, guard, "a test"))
    return next(effect for effect in effects if isinstance(effect, ConfigRevised | ConfigRefused))


def current(world: "World") -> Revision:
    return world.core.revisions[-1]


def test_changes_are_numbered_and_their_history_is_readable(make_world: "Callable[..., World]") -> None:
    world = make_world()
    assert (current(world).number, current(world).origin) == (1, Origin.START)
    change(world, max_num_seqs=3)
    change(world, expected=2, max_num_seqs=4)
    world.feed(events.ConfigRolledBack(comment="worse"))
    assert [(one.number, one.config.max_num_seqs, one.origin) for one in world.core.revisions] == [
        (1, None, Origin.START),
        (2, 3, Origin.UPDATE),
        (3, 4, Origin.UPDATE),
        (4, 3, Origin.ROLLBACK),
    ]
    assert current(world).restores == 2
    assert world.core.config.max_num_seqs == 3
    world.feed(events.ConfigRolledBack(revision=1, expected_revision=4))
    assert world.core.config == SchedulingConfig(watermark_ppm=0)


def test_a_change_of_another_revision_is_refused(make_world: "Callable[..., World]") -> None:
    world = make_world()
    change(world, max_num_seqs=3)
    refused = change(world, expected=1, max_num_seqs=9)
    assert isinstance(refused, ConfigRefused)
    assert refused.reason == Reason.WRONG_REVISION
    assert world.core.config.max_num_seqs == 3
    effects = world.feed(events.ConfigRolledBack(expected_revision=1))
    assert isinstance(effects[0], ConfigRefused)
    effects = world.feed(events.ConfigRolledBack(revision=77))
    assert isinstance(effects[0], ConfigRefused)


def test_knobs_are_validated_as_a_whole(make_world: "Callable[..., World]") -> None:
    world = make_world()
    refused = change(world, itl_target_ns=5 * MS, enable_chunked_prefill=False)
    assert isinstance(refused, ConfigRefused)
    assert refused.reason == Reason.INVALID_REQUEST
    assert current(world).number == 1
    with pytest.raises(ValueError, match="static_batch_size"):
        Core(SchedulingConfig(batching="static", static_batch_size=9, max_num_seqs=3), b"", 1)


def test_a_rollback_with_nothing_before_is_refused(make_world: "Callable[..., World]") -> None:
    effects = make_world().feed(events.ConfigRolledBack())
    assert isinstance(effects[0], ConfigRefused)


def test_the_history_is_bounded(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.is_checking = False
    for i in range(MAX_HISTORY + 50):
        change(world, max_num_seqs=1 + i)
    assert len(world.core.revisions) == MAX_HISTORY
    assert current(world).number == MAX_HISTORY + 51


def busy(world: "World", count: int = 40) -> None:
    for i in range(count):
        world.submit([i] * 3, max_tokens=6)
        world.step()


@pytest.mark.parametrize(
    ("metric", "bound", "words", "knobs"),
    [
        (GuardMetric.QUEUE_P99, 20 * MS, "queue_p99_ms passed 20", {"max_num_seqs": 1}),
        (GuardMetric.TTFT_P99, 20 * MS, "ttft_p99_ms passed 20", {"max_num_seqs": 1}),
        (GuardMetric.ITL_P99, MS // 2, "itl_p99_ms passed 0.5", {"max_num_seqs": 4}),
        (GuardMetric.ERROR_RATIO, 100_000, "error_ratio passed 0.1", {"max_num_queued_reqs": 1, "max_num_seqs": 1}),
    ],
)
def test_a_guard_takes_a_change_back_when_its_bound_is_passed(
    make_world: "Callable[..., World]", metric: GuardMetric, bound: int, words: str, knobs: dict[str, int]
) -> None:
    world = make_world()
    change(world, Guard(metric, bound, 400 * MS), **knobs)
    busy(world)
    world.wait(400 * MS)
    assert current(world).origin is Origin.GUARD
    assert current(world).restores == 1
    assert current(world).comment == f"{words} under revision 2"
    assert world.core.config == SchedulingConfig(watermark_ppm=0)
    assert [effect.revision.number for effect in world.effects if isinstance(effect, ConfigRevised)] == [2, 3]
    world.run()


def test_a_guard_on_preemptions(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 12}, max_num_seqs=1)
    change(world, Guard(GuardMetric.PREEMPTION_RATE, 1000, 1000 * MS), max_num_seqs=4)
    for i in range(6):
        world.submit([i] * 9, max_tokens=30)
    world.run()
    world.wait(1000 * MS)
    assert world.core.load().preemptions > 1
    assert current(world).origin is Origin.GUARD
    assert current(world).comment == "preemptions_per_second passed 1 under revision 2"


@pytest.mark.parametrize("metric", GuardMetric)
def test_a_guard_lets_a_good_change_stand_and_then_rests(
    make_world: "Callable[..., World]", metric: GuardMetric
) -> None:
    world = make_world()
    change(world, Guard(metric, 999_999_999, 300 * MS), max_num_seqs=6)
    busy(world)
    world.run()
    world.wait(300 * MS)
    assert current(world).number == 2
    assert world.core.state.guard_watch is None


def test_one_slow_request_does_not_take_a_change_back_in_the_middle(make_world: "Callable[..., World]") -> None:
    world = make_world()
    change(world, Guard(GuardMetric.TTFT_P99, 10 * MS, 800 * MS), max_num_seqs=6)
    slow = world.submit([1], max_tokens=1)
    world.wait(150 * MS)
    world.run()
    assert slow.is_over
    assert current(world).number == 2
    world.wait(800 * MS)
    assert current(world).origin is Origin.GUARD


def test_a_newer_change_ends_the_watch_of_the_older(make_world: "Callable[..., World]") -> None:
    world = make_world()
    change(world, Guard(GuardMetric.QUEUE_P99, 0, 300 * MS), max_num_seqs=1)
    change(world, max_num_seqs=2)
    busy(world)
    world.wait(400 * MS)
    assert current(world).number == 3


@pytest.mark.parametrize("guard", [Guard(GuardMetric.ITL_P99, 1, 0), Guard(GuardMetric.ITL_P99, -1, 5)])
def test_a_guard_without_sense_is_refused(make_world: "Callable[..., World]", guard: Guard) -> None:
    assert isinstance(change(make_world(), guard), ConfigRefused)


@given(values=st.lists(st.integers(0, 10**12), min_size=1), share=st.integers(1, 1_000_000))
def test_quantiles_are_right_within_a_sixteenth(values: list[int], share: int) -> None:
    spread = Spread()
    for value in values:
        spread.add(value)
    exact = sorted(values)[-(-len(values) * share // 1_000_000) - 1]
    assert exact <= spread.quantile(share) <= exact + exact // 16 + 1
