"""Each policy against a brute-force reference on small cases, and the bound that it promises on long ones."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.ipc import front
from chairlift.ipc.common import Reason, SamplingParams, WaitReason
from chairlift.ipc.tokens import unpack_u32
from scheduler_svc.core import events
from scheduler_svc.core.columns import Confirmed
from scheduler_svc.core.policies.arrival import by_arrival
from scheduler_svc.core.policies.fair import SCALE, Fair
from scheduler_svc.core.policies.fcfs import Fcfs
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.policies.priority import Priority
from scheduler_svc.core.policies.slo import Slo
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import Tenant, TenantKnobs, parse_rule

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import Stream, World

MS = 1_000_000


def waiting(number: int, arrival_ns: int, tenant: Tenant, priority: int = 0, prompt_len: int = 10) -> Sequence:
    submit = front.Submit(
        256 * number,
        tenant.name,
        f"r{number}",
        bytes(16),
        bytes(4 * prompt_len),
        priority=priority,
        ttft_slo_ns=70 + 25 * priority if priority else None,
    )
    request = Request(number, RequestKey(tenant.name, f"r{number}"), tenant, submit, arrival_ns)
    request.add_choices(1, ())
    return request.sequences[0]


def boards_next(policy: Policy, now: int) -> Sequence:
    return next(iter(policy.candidates(now)))


# ---- references, written as the definitions read ----


def first_by_arrival(queue: list[Sequence], now: int) -> Sequence:
    return min(queue, key=by_arrival)


def first_by_priority(queue: list[Sequence], now: int) -> Sequence:
    aged = [one for one in queue if now - one.request.arrival_ns >= 50]
    if aged:
        return min(aged, key=by_arrival)
    top = max(one.request.priority for one in queue)
    return min((one for one in queue if one.request.priority == top), key=by_arrival)


def first_by_slack(queue: list[Sequence], now: int) -> Sequence:
    aged = [one for one in queue if now - one.request.arrival_ns >= 90]
    if aged:
        return min(aged, key=by_arrival)

    def due(one: Sequence) -> tuple[int, int, tuple[int, int, int]]:
        objective = one.request.ttft_slo_ns
        return (one.request.arrival_ns + (objective or 10**10), 10**9, by_arrival(one))

    on_time = [one for one in queue if due(one)[0] >= now]
    return min(on_time or queue, key=due)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "board", "end", "pass"]), st.integers(0, 20), st.integers(-2, 2)),
    max_size=60,
)


@given(operations=OPERATIONS)
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (Fcfs, first_by_arrival),
        (lambda: Priority(50), first_by_priority),
        (lambda: Slo(None, 90), first_by_slack),
    ],
)
def test_the_order_is_the_references(
    make: Callable[[], Policy],
    reference: Callable[[list[Sequence], int], Sequence],
    operations: list[tuple[str, int, int]],
) -> None:
    policy, queue, now = make(), [], 100
    tenant = Tenant("t", TenantKnobs(), 0)
    for number, (what, amount, priority) in enumerate(operations):
        now += amount
        if what == "add":
            queue.append(waiting(number, now - amount, tenant, priority))
            policy.add(queue[-1], now)
        elif queue and what == "board":
            chosen = boards_next(policy, now)
            assert chosen is reference(queue, now)
            policy.remove(chosen, now)
            queue.remove(chosen)
        elif queue and what == "end":
            gone = queue.pop(amount % len(queue))
            policy.remove(gone, now)
        assert len(policy) == len(queue)
        listed = list(policy.candidates(now))
        assert len(listed) == len(queue)
        rest = list(queue)
        for one in listed:
            assert one is reference(rest, now)
            rest.remove(one)
        if queue:
            assert 0 <= policy.num_ahead(queue[-1], now) < len(queue)


class ReferenceVtc:
    """Algorithm 2 of the paper, with exact fractions left out: counters as large integers."""

    def __init__(self, costs: tuple[int, int]) -> None:
        self.costs = costs
        self.counters: dict[str, int] = {}
        self.queue: list[Sequence] = []
        self.last_left: str | None = None

    def add(self, sequence: Sequence) -> None:
        name = sequence.request.tenant.name
        active = {one.request.tenant.name for one in self.queue}
        counter = self.counters.setdefault(name, 0)
        if name not in active:
            others = active or ({self.last_left} if self.last_left else set())
            if others:
                self.counters[name] = max(counter, min(self.counters[other] for other in others))
        self.queue.append(sequence)

    def board(self, weight: int) -> Sequence:
        lowest = min((self.counters[one.request.tenant.name], one.request.tenant.name) for one in self.queue)
        chosen = min((one for one in self.queue if one.request.tenant.name == lowest[1]), key=by_arrival)
        self.queue.remove(chosen)
        if not any(one.request.tenant.name == lowest[1] for one in self.queue):
            self.last_left = lowest[1]
        self.counters[lowest[1]] += self.costs[0] * chosen.request.prompt_len * SCALE // weight
        return chosen


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["add", "add", "board", "sample"]), st.integers(0, 2), st.integers(1, 30)),
        max_size=80,
    )
)
@settings(max_examples=200, deadline=None)
def test_fair_boards_as_the_papers_algorithm_does(operations: list[tuple[str, int, int]]) -> None:
    fair, reference = Fair(1, 2, Confirmed()), ReferenceVtc((1, 2))
    tenants = [Tenant(name, TenantKnobs(), 0, number) for number, name in enumerate("abc")]
    for number, (what, whose, amount) in enumerate(operations):
        tenant = tenants[whose]
        if what == "add":
            sequence = waiting(number, number, tenant, prompt_len=amount)
            fair.add(sequence, 0)
            reference.add(sequence)
        elif what == "board" and reference.queue:
            chosen = boards_next(fair, 0)
            assert chosen is reference.board(1)
            fair.remove(chosen, 0)
            chosen.request.first_boarded_ns = 1
            chosen.request.tenant.input_tokens += chosen.request.prompt_len
        elif what == "sample":
            tenant.add_output(amount)
            reference.counters[tenant.name] = reference.counters.get(tenant.name, 0) + 2 * amount * SCALE


# ---- the same through the whole core ----


def flood(world: "World", tenant: str, count: int, **fields: Any) -> "list[Stream]":
    prompt_len, max_tokens = fields.pop("prompt_len", 8), fields.pop("max_tokens", 12)
    return [
        world.submit([ord(tenant[0]) + i] * prompt_len, tenant=tenant, max_tokens=max_tokens, **fields)
        for i in range(count)
    ]


def service(world: "World", tenant: str) -> int:
    account = world.core.state.tenants.get(tenant, 0)
    return account.input_tokens + 2 * account.output_tokens(world.core.state.confirmed.step)


def steps_while_both_wait(world: "World", one: str, other: str) -> Iterator[None]:
    world.tick()
    while all(world.core.state.tenants.get(name, 0).num_queued_requests for name in (one, other)):
        yield
        world.step()


@pytest.mark.parametrize("weights", [(1, 1), (3, 1)])
def test_two_backlogged_tenants_get_service_by_weight_within_the_papers_bound(
    make_world: "Callable[..., World]", weights: tuple[int, int]
) -> None:
    """Theorem 4.8: at most 2 max(input cost of a prompt, output cost of what a batch holds), over the weight."""
    rules = (f"alpha: weight={weights[0]}", f"beta: weight={weights[1]}")
    world = make_world(policy="fair", max_num_seqs=4, tenants=rules, enable_prefix_caching=False)
    world.is_checking = False
    flood(world, "alpha", 150, max_tokens=6)
    flood(world, "beta", 150, prompt_len=20)
    bound = 2 * max(20, 2 * 4 * 12)
    largest = 0.0
    for _ in steps_while_both_wait(world, "alpha", "beta"):
        difference = service(world, "alpha") / weights[0] - service(world, "beta") / weights[1]
        largest = max(largest, abs(difference))
        assert abs(difference) <= bound
    print("largest difference", largest, "bound", bound)
    assert service(world, "beta") > 500


@given(
    lengths=st.tuples(*[st.tuples(st.integers(1, 30), st.integers(2, 12))] * 2),
    weights=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    costs=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    seats=st.integers(1, 6),
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_bound_holds_for_any_lengths_weights_and_costs(
    make_world: "Callable[..., World]",
    lengths: tuple[tuple[int, int], tuple[int, int]],
    weights: tuple[int, int],
    costs: tuple[int, int],
    seats: int,
) -> None:
    world = make_world(
        policy="fair",
        max_num_seqs=seats,
        tenants=(f"alpha: weight={weights[0]}", f"beta: weight={weights[1]}"),
        enable_prefix_caching=False,
        fair_input_cost=costs[0],
        fair_output_cost=costs[1],
    )
    world.is_checking = False
    for name, (prompt_len, max_tokens) in zip(("alpha", "beta"), lengths, strict=True):
        flood(world, name, 14, prompt_len=prompt_len, max_tokens=max_tokens)
    prompt, output = (max(pair) for pair in zip(*lengths, strict=True))
    bound = 2 * max(costs[0] * prompt, costs[1] * seats * output) / min(weights)

    def served(name: str, weight: int) -> float:
        account = world.core.state.tenants.get(name, 0)
        step = world.core.state.confirmed.step
        return (costs[0] * account.input_tokens + costs[1] * account.output_tokens(step)) / weight

    for _ in steps_while_both_wait(world, "alpha", "beta"):
        assert abs(served("alpha", weights[0]) - served("beta", weights[1])) <= bound


def test_a_quiet_tenant_is_not_behind_a_flood(make_world: "Callable[..., World]") -> None:
    queue_times = {}
    for policy in ("fcfs", "fair"):
        world = make_world(policy=policy, max_num_seqs=4)
        world.is_checking = False
        flood(world, "flood", 100)
        for _ in range(20):
            world.step()
        quiet = world.submit([3] * 8, tenant="quiet", request_id="q", max_tokens=4)
        world.run()
        queue_times[policy] = quiet.finished[0].queue_ns
    assert queue_times["fair"] * 10 < queue_times["fcfs"]


def test_idle_time_earns_no_credit(make_world: "Callable[..., World]") -> None:
    world = make_world(policy="fair", max_num_seqs=2, enable_prefix_caching=False)
    world.is_checking = False
    flood(world, "busy", 60)
    for _ in range(150):
        world.step()
    flood(world, "idle", 40)
    before = service(world, "busy"), service(world, "idle")
    steps = 0
    for _ in steps_while_both_wait(world, "busy", "idle"):
        steps += 1
    gained = service(world, "busy") - before[0], service(world, "idle") - before[1]
    assert steps > 50
    assert abs(gained[0] - gained[1]) <= 2 * max(8, 2 * 2 * 12)


def test_cached_and_recomputed_tokens_are_not_charged(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 16})
    for _ in range(3):
        world.submit([5] * 9, tenant="a", max_tokens=20, sampling=SamplingParams(seed=1, ignore_eos=True))
        world.submit(list(range(9)), tenant="b", max_tokens=20)
    world.run()
    assert world.core.load().preemptions > 0
    for name in "ab":
        account = world.core.state.tenants.get(name, 0)
        assert account.input_tokens == 9 + 1 + 1
        assert account.output_tokens(world.core.state.confirmed.step) == 60


# ---- priority ----


def test_larger_priority_goes_first_and_lower_ones_give_way(make_world: "Callable[..., World]") -> None:
    """sglang#31954, vllm#40004: a higher class never waits for a lower one that could be preempted."""
    world = make_world(policy="priority", max_num_seqs=2)
    low = [world.submit([i], max_tokens=40, priority=0) for i in range(3)]
    for _ in range(4):
        world.step()
    high = world.submit([9] * 3, max_tokens=5, priority=5, request_id="h")
    world.run()
    # Both plans of the moment were on their way; the next one has it.
    assert high.finished[0].queue_ns <= MS
    assert high.finished[0].ttft_ns is not None
    assert high.finished[0].ttft_ns <= 3 * MS
    assert [stream.finished[0].preemptions for stream in low] == [0, 1, 0]
    for i, stream in enumerate(low):
        assert stream.outputs[0] == world.expected([i], 40)


def test_memory_is_taken_from_lower_classes_only_if_that_is_enough(make_world: "Callable[..., World]") -> None:
    world = make_world(policy="priority", geometry_changes={"num_blocks": 20})
    equal = world.submit([1] * 40, max_tokens=8, priority=1)
    low = world.submit([2] * 20, max_tokens=8, priority=0)
    for _ in range(3):
        world.step()
    # Ten blocks are held by an equal: five from below do not make room for it.
    large = world.submit([3] * 41, max_tokens=4, priority=1)
    world.step()
    assert world.core.load().preemptions == 0
    small = world.submit([4] * 30, max_tokens=4, priority=2)
    world.run()
    assert [stream.finished[0].preemptions for stream in (equal, low, large, small)] == [0, 1, 0, 0]


@pytest.mark.parametrize("max_wait_ms", [20, 60])
def test_ageing_bounds_the_wait_under_any_load_of_higher_classes(
    make_world: "Callable[..., World]", max_wait_ms: int
) -> None:
    world = make_world(policy="priority", max_num_seqs=2, max_priority_wait_ns=max_wait_ms * MS)
    world.is_checking = False
    for i in range(2):
        world.submit([500 + i], max_tokens=4, priority=i)
    world.tick()
    low = world.submit([1], max_tokens=30, priority=-5, request_id="low")
    for i in range(400):
        if i % 2 == 0:
            world.submit([i], max_tokens=4, priority=i % 3)
        world.step()
        if low.is_over:
            break
    assert low.is_over
    # It boards once it is that old, as soon as a row leaves, and is not put back by the classes above.
    assert low.finished[0].queue_ns <= (max_wait_ms + 2) * MS
    assert low.finished[0].preemptions == 0
    waits = {WaitReason(reason): ns for reason, ns in world.explain("low").waits}
    assert waits[WaitReason.PRIORITY] > (max_wait_ms - 10) * MS


def test_explain_says_that_a_tenant_waited_for_its_fair_share(make_world: "Callable[..., World]") -> None:
    world = make_world(policy="fair", max_num_seqs=1)
    flood(world, "t", 6, max_tokens=6)
    for _ in range(8):
        world.step()
    world.submit([7] * 4, tenant="other", max_tokens=20)
    world.submit([8] * 4, tenant="other", max_tokens=20)
    world.run()
    waits = {WaitReason(reason) for reason, _ in world.explain("r6").waits}
    assert waits == {WaitReason.SEATS, WaitReason.FAIR_SHARE}


# ---- slo ----


def test_the_tightest_objective_boards_first(make_world: "Callable[..., World]") -> None:
    world = make_world(policy="slo", max_num_seqs=1)
    world.submit([1], max_tokens=10)
    world.tick()
    loose = world.submit([2], max_tokens=3, ttft_slo_ns=500 * MS)
    none = world.submit([3], max_tokens=3)
    tight = world.submit([4], max_tokens=3, ttft_slo_ns=100 * MS)
    world.run()
    times = [stream.finished[0].queue_ns for stream in (tight, loose, none)]
    assert times == sorted(times)


def test_those_that_missed_their_objective_do_not_make_the_others_miss_theirs(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world(policy="slo", max_num_seqs=1)
    world.submit([1], max_tokens=30)
    world.tick()
    hopeless = [world.submit([10 + i], max_tokens=20, ttft_slo_ns=5 * MS) for i in range(5)]
    for _ in range(20):
        world.step()
    fresh = world.submit([2], max_tokens=3, ttft_slo_ns=60 * MS)
    world.run()
    assert fresh.finished[0].ttft_ns is not None
    assert fresh.finished[0].ttft_ns <= 60 * MS
    assert all(stream.is_over for stream in hopeless)


# ---- limits of tenants ----


def test_a_tenants_rule_is_parsed() -> None:
    assert parse_rule("gold: weight=4, token_rate=500", TenantKnobs(max_num_seqs=3)) == (
        "gold",
        TenantKnobs(weight=4, max_num_seqs=3, token_rate=500),
    )


def test_a_tenant_has_no_more_seats_than_its_limit_and_stands_in_nobodys_way(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world(tenant_max_num_seqs=2, tenants=("vip: max_num_seqs=4",))
    flood(world, "small", 5)
    vip = flood(world, "vip", 4, max_tokens=5)
    for _ in range(3):
        world.step()
        assert world.core.state.tenants.get("small", 0).num_seated == 2
    assert all(stream.outputs[0] for stream in vip)
    world.run()


def test_a_tenants_queue_is_bounded(make_world: "Callable[..., World]") -> None:
    world = make_world(tenant_max_num_queued_reqs=2)
    streams = flood(world, "small", 3)
    assert streams[2].refused is not None
    assert streams[2].refused.reason == Reason.TENANT_QUOTA_EXCEEDED
    assert streams[2].refused.retry_after_ns
    assert world.submit([1], tenant="other").accepted is not None
    world.run()
    assert world.submit([2], tenant="small", max_tokens=2).accepted is not None


def test_a_tenants_token_rate_is_a_bucket_with_an_exact_retry_time(make_world: "Callable[..., World]") -> None:
    world = make_world(tenants=("slow: token_rate=10",))
    first = world.submit([1] * 20, tenant="slow", max_tokens=10)
    world.run()
    assert first.is_over
    refused = world.submit([1], tenant="slow").refused
    assert refused is not None
    assert refused.reason == Reason.TENANT_QUOTA_EXCEEDED
    assert refused.retry_after_ns is not None
    world.wait(refused.retry_after_ns - 1)
    assert world.submit([1], tenant="slow").refused is not None
    world.wait(1)
    assert world.submit([1], tenant="slow", max_tokens=2).accepted is not None
    # An earlier scheduler's request passes.
    assert world.submit([1], tenant="slow", attempt=2, max_tokens=2).accepted is not None


def test_a_long_wait_fills_the_bucket_with_one_seconds_rate_at_most() -> None:
    tenant = Tenant("t", TenantKnobs(token_rate=100), 0)
    assert tenant.bucket_wait_ns(10_000 * 1_000 * MS, 0) == 0
    tenant.input_tokens = 250
    assert tenant.bucket_wait_ns(10_000 * 1_000 * MS, 0) == 1500 * MS + 1


def test_the_accounts_of_idle_tenants_are_bounded(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.is_checking = False
    for i in range(10_100):
        world.submit([1], tenant=f"t{i}", request_id="a", max_tokens=1)
        world.cancel("a", f"t{i}")
    assert len(list(world.core.state.tenants)) <= 10_001


def test_the_policy_can_change_while_requests_wait(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    world.submit([1], max_tokens=8)
    early = world.submit([2], max_tokens=2, priority=0)
    late = world.submit([3], max_tokens=2, priority=7)
    world.tick()
    config = msgspec.structs.replace(world.core.state.config, policy="priority")
    world.feed(events.ConfigChanged(config))
    world.run()
    assert late.finished[0].queue_ns < early.finished[0].queue_ns
    assert max(len(unpack_u32(plan.decode)) for plan in world.sent_plans) == 1
