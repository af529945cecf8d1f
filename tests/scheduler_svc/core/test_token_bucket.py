"""A tenant's token rate against a bucket that is looked at each millisecond, and whom it must not keep out."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core import events
from scheduler_svc.core.tenants import Tenant, TenantKnobs

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000
S = 1_000_000_000


class BruteForce:
    """A step each millisecond, in which each row spends a token."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.level = rate * S
        self.rows = 0

    def millisecond(self) -> None:
        self.level = min(self.rate * S, self.level + self.rate * MS - self.rows * S)

    def wait_ns(self) -> int:
        return 0 if self.level > 0 else -self.level // self.rate + 1


MOVES = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 3000)),
    st.tuples(st.sampled_from(["prompt", "output"]), st.integers(1, 5000)),
    st.tuples(st.just("rows"), st.integers(0, 5)),
    st.tuples(st.just("rate"), st.sampled_from([1, 10, 1000, 4000])),
    st.tuples(st.just("ask"), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MOVES, max_size=25))
def test_it_is_a_token_bucket_however_seldom_it_is_looked_at(moves: list[tuple[str, int]]) -> None:
    tenant, brute, now = Tenant("t", TenantKnobs(token_rate=1000), 0), BruteForce(1000), 0
    for move, amount in [*moves, ("ask", 0)]:
        step = now // MS
        match move:
            case "pass":
                now += amount * MS
                for _ in range(amount):
                    brute.millisecond()
            case "prompt" | "output":
                tenant.settle_bucket(now, step)
                if move == "prompt":
                    tenant.input_tokens += amount
                else:
                    tenant.add_output(amount)
                brute.level -= amount * S
            case "rows":
                tenant.settle_bucket(now, step)
                tenant.change_rows(amount - tenant.num_rows, step)
                brute.rows = amount
            case "rate":
                tenant.change_knobs(TenantKnobs(token_rate=amount), now, step)
                if amount != brute.rate:
                    brute.rate, brute.level = amount, amount * S
            case _:
                assert tenant.bucket_wait_ns(now, step) == brute.wait_ns()


def test_a_stream_below_the_rate_keeps_nobody_out() -> None:
    tenant = Tenant("t", TenantKnobs(token_rate=100), 0)
    tenant.change_rows(1, 0)
    assert tenant.bucket_wait_ns(1000 * S, 50_000) == 0


def test_work_from_before_the_limit_is_not_held_against_anyone(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1] * 30, tenant="slow", max_tokens=60)
    world.run()
    limited = msgspec.structs.replace(world.core.state.config, tenant_token_rate=10)
    world.feed(events.ConfigChanged(limited, None, None, "a test"))
    assert world.submit([2] * 20, tenant="slow", max_tokens=2).accepted is not None
    world.run()
    assert world.submit([3], tenant="slow", max_tokens=2).refused is not None
