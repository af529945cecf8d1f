"""Service by tenant for the metrics: the tenants with the most have series of their own, the rest is one.

Each series only ever grows, also when a tenant gets or loses its own: what counts is what was computed since the last
time.
"""

import heapq
from collections.abc import Iterable

from scheduler_svc.core.tenants import Tenant

OTHER = "other"


class TenantService:
    """Tokens by series. Belongs to the scheduler's loop."""

    def __init__(self, max_series: int) -> None:
        self._max_series = max_series
        self._seen: dict[int, int] = {}
        self._series: dict[str, int] = {OTHER: 0}
        self._own: frozenset[str] = frozenset()

    def series(self) -> dict[str, int]:
        """Tokens computed, by tenant or OTHER; never less than before. Who lost its series is absent."""
        return {name: self._series.get(name, 0) for name in (*sorted(self._own), OTHER)}

    def update(self, tenants: Iterable[Tenant], step: int) -> None:
        """Takes in what was computed up to a completed step, and who has the most now."""
        totals = [(tenant.input_tokens + tenant.output_tokens(step), tenant) for tenant in tenants]
        largest = heapq.nlargest(self._max_series, totals, key=lambda item: (item[0], -item[1].number))
        self._own = frozenset(tenant.name for total, tenant in largest if total)
        seen = {}
        for total, tenant in totals:
            seen[tenant.number] = total
            gained = total - self._seen.get(tenant.number, 0)
            if gained:
                name = tenant.name if tenant.name in self._own else OTHER
                self._series[name] = self._series.get(name, 0) + gained
        self._seen = seen
