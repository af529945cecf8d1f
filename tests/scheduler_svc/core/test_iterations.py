"""The account of iterations: who rode, came, left and gave way; bounded; part of no decision."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from chairlift.ipc import operator
from chairlift.ipc.common import FinishReason
from scheduler_svc.core.checkpoint import dump_state
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.core.hash_source import TokenHashes
from scheduler_svc.core.iterations import MAX_NOTED, MAX_READY, IterationWatch, WatchOptions
from scheduler_svc.iteration_feed import IterationFeed

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

EVERYTHING = WatchOptions(min_interval_ns=0, include_riders=True)
_RIDERS_APART_NS = 1_000_000


def watch(world: "World", options: WatchOptions = EVERYTHING) -> IterationWatch:
    started = world.core.watch(options)
    assert started is not None
    return started


def step(world: "World") -> None:
    """A step so long after the last that no iteration comes too soon."""
    world.now += _RIDERS_APART_NS
    world.step()


def names(sequences: Any) -> list[str]:
    return [one.request_id for one in sequences]


def test_each_iteration_tells_who_rode_came_and_left(make_world: "Callable[..., World]") -> None:
    world = make_world()
    account = watch(world)
    world.submit([1, 2, 3], max_tokens=2, request_id="short")
    step(world)
    world.submit([4] * 40, max_tokens=9, request_id="long")
    for _ in range(5):
        step(world)
    told = account.take(world.now)
    assert [one.number for one in told] == list(range(1, len(told) + 1))
    first = told[0]
    assert names(first.boarded) == ["short"]
    assert [(one.sequence.request_id, one.num_tokens, one.is_sampling) for one in first.riders] == [("short", 3, True)]
    assert (first.num_tokens, first.num_prefill_tokens, first.num_seqs, first.token_budget) == (3, 3, 1, 32)
    chunked = next(one for one in told if "long" in names(one.boarded))
    rider = next(one for one in chunked.riders if one.sequence.request_id == "long")
    assert (rider.is_sampling, chunked.num_prefill_tokens) == (False, rider.num_tokens)
    left = [(one.sequence.request_id, one.reason) for iteration in told for one in iteration.departed]
    assert left == [("short", FinishReason.LENGTH)]
    for one in told:
        assert sum(rider.num_tokens for rider in one.riders) == one.num_tokens
        assert len(one.riders) == one.num_seqs
        assert one.blocks.free + one.blocks.cached + one.blocks.used == one.blocks.total
        assert one.total_ns > 0
        assert one.age_ns >= one.total_ns


def test_who_gives_way_is_told(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 12})
    account = watch(world)
    for i in range(4):
        world.submit([i] * 9, max_tokens=30)
    world.tick()
    told: list[operator.Iteration] = []
    while world.plans:
        step(world)
        told += account.take(world.now)
    displaced = [one for iteration in told for one in iteration.displaced]
    assert len(displaced) == world.core.load().preemptions > 0
    boarded = sum(len(iteration.boarded) for iteration in told)
    assert boarded == 4 + len(displaced)


def test_iterations_that_come_too_soon_leave_a_gap_and_lose_nobody(make_world: "Callable[..., World]") -> None:
    world = make_world()
    account = watch(world, WatchOptions(min_interval_ns=10_000_000, include_riders=False))
    for i in range(6):
        world.submit([i] * 3, max_tokens=8)
        for _ in range(4):
            world.step()
    told = account.take(world.now)
    assert 2 < len(told) < 6
    assert told[-1].number - told[0].number > 2 * len(told)
    assert told[0].riders == ()
    assert names(one for iteration in told for one in iteration.boarded)[:3] == ["r1", "r2", "r3"]


def test_naming_a_large_batch_puts_the_next_account_off(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"max_num_seqs": 32, "num_blocks": 1024})
    account = watch(world)
    for i in range(32):
        world.submit([i], max_tokens=50)
    for _ in range(40):
        world.step()
    assert 10 <= len(account.take(world.now)) <= 14


def test_what_nobody_takes_is_bounded(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.is_checking = False
    account = watch(world, WatchOptions(min_interval_ns=1 << 62, include_riders=False))
    for i in range(MAX_NOTED + 50):
        world.submit([i % 900], max_tokens=1)
        world.step()
    assert len(account._boarded) <= MAX_NOTED
    assert len(account._departed) <= MAX_NOTED
    account.options = WatchOptions(min_interval_ns=0, include_riders=False)
    account._due_ns = 0
    for i in range(MAX_READY + 20):
        world.submit([i % 900], max_tokens=1)
        world.step()
    assert len(account.take(world.now)) == MAX_READY


class Link:
    """Takes what gateways are sent, unless it is full."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.is_full = False

    def is_attached(self, gateway: int) -> bool:
        return gateway < 9

    def offer(self, gateway: int, message: Any) -> bool:
        if not self.is_full:
            self.sent.append((gateway, message))
        return not self.is_full


def test_a_gateway_gets_what_its_credit_allows(make_world: "Callable[..., World]") -> None:
    """A gateway that asks no more gets no more: nothing piles up in front of its clients' tokens."""
    world = make_world()
    link: Any = Link()
    feed = IterationFeed(world.core, 7, link)
    feed.command(1, operator.WatchCommand(2, 1e9, True), world.now)
    feed.command(2, operator.WatchCommand(50, 100.0), world.now)
    world.submit([1], max_tokens=200)

    def steps(count: int) -> None:
        for _ in range(count):
            world.now += 9_000_000
            world.step()
            if feed.watch is not None:
                feed.report(world.now)

    steps(5)
    assert [(gateway, message.iteration.number) for gateway, message in link.sent] == [
        *((1, 1), (2, 1), (1, 2), (2, 2)),
        # The third is planned too soon after two at once.
        *((2, 4), (2, 5)),
    ]
    link.is_full = True
    steps(2)
    link.is_full = False
    feed.command(1, operator.WatchCommand(1, 1.0, True), world.now)
    steps(2)
    assert [(gateway, message.iteration.number) for gateway, message in link.sent[6:]] == [(2, 8), (1, 8), (2, 9)]
    feed.command(2, operator.WatchCommand(0, 1.0), world.now)
    assert feed.watch is not None
    world.now += 20_000_000_000
    steps(1)
    assert feed.watch is None


def test_steps_that_fail_are_no_iterations(make_world: "Callable[..., World]") -> None:
    world = make_world()
    account = watch(world)
    for i in range(4):
        # A request that is there at every death of a worker is ended for it.
        world.submit([1, 2, i], max_tokens=20)
        step(world)
        world.cancel(f"r{i}")
        world.worker_lost()
        world.worker_up()
        world.tick()
    assert len(account._drafts) <= 4
    told = account.take(world.now)
    assert [one.number for one in told] == sorted({one.number for one in told})


def test_watching_changes_no_plan_and_no_checkpoint(make_world: "Callable[..., World]") -> None:
    plans = []
    for options in (None, EVERYTHING):
        world = make_world(geometry_changes={"num_blocks": 14})
        world.core.watch(options)
        for i in range(5):
            world.submit([i] * 9, max_tokens=20)
        world.run()
        plans.append([msgspec.msgpack.encode(one.plan) for one in world.effects if isinstance(one, SendPlan)])
        packed = dump_state(world.core.state)
        restored = type(world.core).restored(packed, lambda size: TokenHashes(b"key", size))
        assert restored.state.watch is None
    assert plans[0] == plans[1]
    assert world.core.watch(None) is None
