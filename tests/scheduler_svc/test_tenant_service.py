"""Service by tenant: the largest have series of their own, every token is in one series, and none ever shrinks."""

import random

from scheduler_svc.core.tenants import Tenant, TenantKnobs
from scheduler_svc.tenant_service import OTHER, TenantService


def _tenant(name: str, number: int, tokens: int) -> Tenant:
    tenant = Tenant(name, TenantKnobs(), 0, number)
    tenant.input_tokens = tokens
    return tenant


def test_the_largest_have_series_of_their_own() -> None:
    service = TenantService(max_series=2)
    service.update([_tenant("a", 1, 10), _tenant("b", 2, 30), _tenant("c", 3, 20), _tenant("d", 4, 0)], step=0)
    assert service.series() == {"b": 30, "c": 20, OTHER: 10}


def test_nobody_has_a_series_where_none_is_wanted() -> None:
    service = TenantService(max_series=0)
    service.update([_tenant("a", 1, 10)], step=0)
    assert service.series() == {OTHER: 10}


def test_every_token_is_counted_once_and_no_series_shrinks() -> None:
    chance = random.Random(7)
    tenants = [_tenant(f"t{number}", number, 0) for number in range(12)]
    service, before, total = TenantService(max_series=3), dict[str, int](), 0
    largest_seen = dict[str, int]()
    for _ in range(200):
        for tenant in tenants:
            gained = chance.randrange(100) * chance.randrange(2)
            tenant.input_tokens += gained
            total += gained
        if chance.random() < 0.1:
            # An account that was idle for long is forgotten, and begins anew.
            gone = tenants.pop(chance.randrange(len(tenants)))
            tenants.append(_tenant(gone.name, gone.number + 100, 0))
        service.update(tenants, step=0)
        series = service.series()
        assert all(series[name] >= before.get(name, 0) for name in series if name in before)
        assert len(series) <= 4
        before = series
        largest_seen |= series
    assert sum(largest_seen.values()) <= total
