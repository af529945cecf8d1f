"""Lists of requests for operators, a page at a time, and everything known of one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chairlift.ipc import operator
from chairlift.ipc.common import FinishReason
from scheduler_svc.core import listing

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World


def page(world: "World", **query: Any) -> operator.RequestsReply:
    asked = operator.RequestsQuery(1, **query)
    return listing.list_requests(world.core.state, asked, world.now)


def ids(reply: operator.RequestsReply) -> list[str]:
    return [row.request_id for row in reply.requests]


def test_pages_hold_every_request_once_in_order(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=2)
    for i in range(7):
        world.submit([i], max_tokens=30, tenant="ann" if i % 2 else "bob")
    for _ in range(4):
        world.step()
    seen: list[str] = []
    after = 0
    while True:
        reply = page(world, after=after, limit=3)
        seen += ids(reply)
        after = reply.requests[-1].number
        if not reply.has_more:
            break
    assert seen == [f"r{i}" for i in range(1, 8)]
    assert ids(page(world, tenant="ann")) == ["r2", "r4", "r6"]
    assert ids(page(world, states=("running",))) == ["r1", "r2"]
    waiting = page(world, states=("waiting",), limit=10**6).requests
    assert [row.queue_position for row in waiting] == [0, 1, 2, 3, 4]
    assert len(page(world, limit=0).requests) == 1


def test_ended_requests_are_listed_where_asked_for(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1], max_tokens=3)
    world.run()
    world.submit([2], max_tokens=3)
    assert ids(page(world)) == ["r2"]
    (row,) = page(world, states=("ended",)).requests
    total = row.total_ns
    world.now += 10**9
    assert page(world, states=("ended",)).requests[0].total_ns == total
    assert (row.output_tokens, row.prompt_tokens) == (3, 1)


def test_a_list_agrees_with_explain_and_touches_nothing(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([5] * 6, max_tokens=20, n=2, deadline_in_ns=10**12)
    for _ in range(7):
        world.step()
    settled = [len(one.outputs) for one in next(iter(world.core.state.requests.values())).sequences]
    (row,) = page(world).requests
    reply = listing.inspect(world.core.state, operator.InspectQuery(1, "t", "r1"), world.now)
    assert [len(one.outputs) for one in next(iter(world.core.state.requests.values())).sequences] == settled
    assert reply is not None
    explained = world.explain("r1")
    assert (row.output_tokens, row.wait_ns, row.state) == (explained.output_tokens, explained.wait_ns, explained.state)
    assert (reply.iterations, reply.prefill_chunks) == (explained.iterations, explained.prefill_chunks)
    assert row.deadline_in_ns == 10**12 - 7_000_000
    for choice, sequence in zip(reply.choices, next(iter(world.core.state.requests.values())).sequences, strict=True):
        assert choice.known_tokens == sequence.num_known
        assert choice.output_tokens == len(sequence.outputs)
        assert choice.computed_tokens == sequence.num_known - 1
        assert choice.scheduled_tokens >= choice.computed_tokens
        assert choice.num_blocks == len(sequence.blocks)


def test_inspecting_what_has_ended_tells_why(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1], max_tokens=3, attempt=2, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    world.run()
    reply = listing.inspect(world.core.state, operator.InspectQuery(1, "t", "r1"), world.now)
    assert reply is not None
    assert (reply.choices[0].state, reply.choices[0].finish_reason) == ("ended", FinishReason.LENGTH)
    assert (reply.attempt, reply.trace_id, reply.max_tokens) == (2, "ab" * 16, 3)
    assert listing.inspect(world.core.state, operator.InspectQuery(1, "other", "r1"), world.now) is None
