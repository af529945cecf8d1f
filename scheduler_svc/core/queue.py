"""Who waits: the policy's queue, and those whose tenant has its limit of seats taken.

Counts what waits. A tenant at its limit has no more sequences offered to the policy than it has seats left, so that the
others never stand behind it and a plan never looks at them in vain; the rest is parked in order of arrival.
"""

from collections.abc import Iterable, Iterator

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.policies.arrival import ArrivalOrder, by_arrival
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import Tenant


class Queue:
    """All waiting sequences."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._parked: dict[str, ArrivalOrder] = {}
        self._num_parked = 0
        self.num_tokens = 0
        """Prompt tokens that wait to be computed."""
        self.num_preempted = 0
        """Waiting sequences that had a seat before."""
        self.num_enqueued = 0
        """Times that a sequence became a candidate: whoever found nobody to board need not look again before."""

    def __len__(self) -> int:
        return len(self._policy) + self._num_parked

    @property
    def num_candidates(self) -> int:
        """Waiting sequences that may board."""
        return len(self._policy)

    def candidates(self, now: int) -> Iterator[Sequence]:
        """In the policy's order; the one yielded last may be taken out meanwhile."""
        return self._policy.candidates(now)

    def add(self, sequence: Sequence, now: int) -> None:
        """A sequence waits from now on."""
        self.num_tokens += sequence.request.queue_cost(sequence)
        self.num_preempted += sequence.has_run
        tenant = sequence.request.tenant
        free = tenant.num_free_offers()
        if free is None or free > 0:
            self._offer(sequence, tenant, now)
        else:
            self._parked.setdefault(tenant.name, ArrivalOrder()).add(sequence)
            self._num_parked += 1

    def _offer(self, sequence: Sequence, tenant: Tenant, now: int) -> None:
        tenant.num_offered += 1
        self.num_enqueued += 1
        self._policy.add(sequence, now)

    def remove(self, sequence: Sequence, now: int) -> None:
        """It boards, or has ended; call before its state changes. Raises KeyError when it does not wait."""
        self.num_tokens -= sequence.request.queue_cost(sequence)
        self.num_preempted -= sequence.has_run
        tenant = sequence.request.tenant
        parked = self._parked.get(tenant.name)
        if parked is not None and sequence in parked:
            parked.remove(sequence)
            self._num_parked -= 1
            self._forget_if_empty(tenant, parked)
        else:
            self._policy.remove(sequence, now)
            tenant.num_offered -= 1

    def offer_parked(self, tenant: Tenant, now: int) -> None:
        """A seat of the tenant's limit has become free."""
        parked = self._parked.get(tenant.name)
        if parked is None:
            return
        free = tenant.num_free_offers()
        count = len(parked) if free is None else min(free, len(parked))
        for _ in range(count):
            sequence = parked.first()
            parked.remove(sequence)
            self._num_parked -= 1
            self._offer(sequence, tenant, now)
        self._forget_if_empty(tenant, parked)

    def _forget_if_empty(self, tenant: Tenant, parked: ArrivalOrder) -> None:
        if not len(parked):
            del self._parked[tenant.name]

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Who gives way when memory is short; see Policy."""
        return self._policy.victim(running, now)

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Who gives way for a waiting one to board; see Policy."""
        return self._policy.displaced_by(sequence, running, now)

    @property
    def passed_reason(self) -> WaitReason | None:
        """See Policy."""
        return self._policy.passed_reason

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """About how many waiting sequences would board before it, whether it waits already or not."""
        parked = self._parked.get(sequence.request.tenant.name)
        if parked is not None and sequence in parked:
            return len(self._policy) + parked.index(sequence)
        return self._policy.num_ahead(sequence, now)

    def change_policy(self, policy: Policy, now: int) -> None:
        """Everyone who waits keeps waiting, in the new policy's order; limits of tenants may be other ones too."""
        waiting = sorted(self, key=by_arrival)
        self._policy = policy
        self._parked = {}
        self._num_parked = self.num_tokens = self.num_preempted = 0
        for sequence in waiting:
            sequence.request.tenant.num_offered = 0
        for sequence in waiting:
            self.add(sequence, now)

    def __iter__(self) -> Iterator[Sequence]:
        yield from list(self._policy.candidates(0))
        for parked in self._parked.values():
            yield from list(parked)
