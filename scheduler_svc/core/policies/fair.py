"""Fair shares between tenants: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024.

Each tenant has a counter of the service that it was given, in weighted tokens over its weight; the tenant with the
smallest counter boards next. One that comes back after it had nothing waiting is lifted to the smallest counter of
those that wait (or to that of the last one that left), so that idle time earns no credit. For two tenants that both
wait all the time, the difference of their service stays below twice the largest of: the cost of one prompt, and what a
full batch may sample.

Differences to the paper, both towards what is real: prompt tokens found in the prefix cache or computed again after
preemption are not charged, and prompt tokens count when the request boards (and are given back if they are never
computed).
"""

import heapq
from collections.abc import Iterable, Iterator

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.columns import Confirmed
from scheduler_svc.core.policies.arrival import ArrivalOrder, by_arrival
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import Tenant

SCALE = 1_000_000
"""Counters are in millionths of a token of a tenant with weight 1."""


class Fair:
    """The policy ``fair``. `confirmed` knows the last completed step."""

    passed_reason: WaitReason | None = WaitReason.FAIR_SHARE

    def __init__(self, input_cost: int, output_cost: int, confirmed: Confirmed) -> None:
        self._input_cost = input_cost
        self._output_cost = output_cost
        self._confirmed = confirmed
        self._queues: dict[str, ArrivalOrder] = {}
        self._size = 0
        self._last_left: Tenant | None = None

    def __len__(self) -> int:
        return self._size

    def counter(self, tenant: Tenant) -> int:
        """The service that a tenant was given, and what its seated prompts will still cost, over its weight."""
        tokens = self._input_cost * (tenant.input_tokens + tenant.pending_input)
        tokens += self._output_cost * tenant.output_tokens(self._confirmed.step)
        return tokens * SCALE // tenant.knobs.weight + tenant.lift

    def add(self, sequence: Sequence, now: int) -> None:
        """See Policy. A tenant that had nothing waiting, and sends something new, is lifted."""
        tenant = sequence.request.tenant
        queue = self._queues.get(tenant.name)
        if queue is None:
            if sequence.request.first_boarded_ns is None:
                self._lift(tenant)
            queue = self._queues[tenant.name] = ArrivalOrder()
        queue.add(sequence)
        self._size += 1

    def _lift(self, tenant: Tenant) -> None:
        waiting = [queue.first().request.tenant for queue in self._queues.values()]
        if not waiting and self._last_left is not None:
            waiting = [self._last_left]
        if waiting:
            lowest = min(map(self.counter, waiting))
            tenant.lift += max(lowest - self.counter(tenant), 0)

    def remove(self, sequence: Sequence, now: int) -> None:
        """See Policy."""
        tenant = sequence.request.tenant
        queue = self._queues[tenant.name]
        queue.remove(sequence)
        self._size -= 1
        if not len(queue):
            del self._queues[tenant.name]
            self._last_left = tenant

    def candidates(self, now: int) -> Iterator[Sequence]:
        """From the tenant with the smallest counter, each time anew; within a tenant by arrival."""
        heads = []
        for queue in self._queues.values():
            order = iter(queue)
            first = next(order)
            tenant = first.request.tenant
            heads.append((self.counter(tenant), tenant.number, first, order))
        heapq.heapify(heads)
        while heads:
            _, number, sequence, order = heapq.heappop(heads)
            yield sequence
            following = next(order, None)
            if following is not None:
                # Boarding has charged the tenant: its turn comes when its counter is the smallest again.
                heapq.heappush(heads, (self.counter(following.request.tenant), number, following, order))

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """The latest arrival: counters change with every step, and would let two evict each other in turn."""
        return max(running, key=by_arrival, default=None)

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Nobody: service is shared by who boards next."""
        return None

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """At most as many of each other tenant as of its own are ahead."""
        queue = self._queues.get(sequence.request.tenant.name)
        own = 0 if queue is None else queue.index(sequence)
        others = (queue for name, queue in self._queues.items() if name != sequence.request.tenant.name)
        return own + sum(min(len(queue), own + 1) for queue in others)
