"""Tenants: what each has running and waiting, what service it was given, and what it may have.

Service counts tokens that were computed, each once: a prompt token that is computed again after preemption is not
charged again, nor one found in the cache, nor one that an earlier attempt emitted. Decoding sequences are not looked at
one by one: a tenant's rows in the confirmed column times the steps since.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from scheduler_svc.core.config import SchedulingConfig

_MAX_IDLE = 10_000
"""Tenants with nothing here whose counters are remembered."""
_NS_PER_S = 1_000_000_000


class TenantKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant may have; None is no limit of its own."""

    weight: int = 1
    """Its share of service under `fair` is in proportion to this."""
    max_num_seqs: int | None = None
    """Seats at one time."""
    max_num_queued_reqs: int | None = None
    token_rate: int | None = None
    """Prompt and output tokens a second, in the long run."""


def parse_rule(rule: str, defaults: TenantKnobs) -> tuple[str, TenantKnobs]:
    """A tenant's name and knobs from a rule such as ``gold: weight=4, max_num_seqs=32``; see `TenantRule`."""
    name, _, values = rule.partition(":")
    pairs = (value.strip().split("=") for value in values.split(","))
    return name, msgspec.structs.replace(defaults, **{key: int(number) for key, number in pairs})


class Tenant:
    """One tenant's account."""

    __slots__ = (
        "_bucket_level",
        "_bucket_ns",
        "_bucket_spent",
        "_output",
        "_since",
        "input_tokens",
        "knobs",
        "lift",
        "name",
        "num_offered",
        "num_queued_requests",
        "num_requests",
        "num_rows",
        "num_seated",
        "number",
        "pending_input",
    )

    def __init__(self, name: str, knobs: TenantKnobs, now: int, number: int = 0) -> None:
        self.name = name
        self.number = number
        """By when it was first heard of: settles what is otherwise equal."""
        self.knobs = knobs
        self.num_requests = 0
        """Living ones."""
        self.num_queued_requests = 0
        """Those of which no choice ever had a seat."""
        self.num_seated = 0
        self.num_offered = 0
        """Its waiting sequences that the policy may choose from."""
        self.num_rows = 0
        """Its sequences in the confirmed column."""
        self.input_tokens = 0
        """Prompt tokens computed for it."""
        self.pending_input = 0
        """Prompt tokens of its seated sequences that will be charged once computed."""
        self.lift = 0
        """What `fair` has added to its counter; see there."""
        self._output = 0
        self._since = 0
        self._bucket_level = (knobs.token_rate or 0) * _NS_PER_S
        """In tokens times nanoseconds, so that no fraction is lost."""
        self._bucket_ns = now
        self._bucket_spent = 0

    def output_tokens(self, step: int) -> int:
        """Output tokens computed for it up to that completed step."""
        return self._output + self.num_rows * (step - self._since)

    def change_rows(self, change: int, step: int) -> None:
        """So many of its sequences joined (or left) the confirmed column after that step."""
        self._output += self.num_rows * (step - self._since)
        self._since = step
        self.num_rows += change

    def add_output(self, num_tokens: int) -> None:
        """Output tokens that were sampled outside the column."""
        self._output += num_tokens

    def num_free_offers(self) -> int | None:
        """How many more of its sequences the policy may be offered; None without a limit."""
        limit = self.knobs.max_num_seqs
        return None if limit is None else limit - self.num_seated - self.num_offered

    def change_knobs(self, knobs: TenantKnobs, now: int, step: int) -> None:
        """Other weight and limits. Under another rate it begins with a full bucket: what was before is not its due."""
        if knobs.token_rate is not None and knobs.token_rate != self.knobs.token_rate:
            self._bucket_level = knobs.token_rate * _NS_PER_S
            self._bucket_ns = now
            self._bucket_spent = self.input_tokens + self.output_tokens(step)
        self.knobs = knobs

    def settle_bucket(self, now: int, step: int) -> None:
        """Brings the bucket up to now; to be called before a charge and before its rows in the column change.

        In between it spends evenly, so that refill and spending of the whole time are one sum, and need no look at
        each step. Only that sum is capped: what flows through at once never had to be kept.
        """
        rate = self.knobs.token_rate
        if rate is None:
            return
        spent = self.input_tokens + self.output_tokens(step)
        gained = (now - self._bucket_ns) * rate - (spent - self._bucket_spent) * _NS_PER_S
        self._bucket_level = min(rate * _NS_PER_S, self._bucket_level + gained)
        self._bucket_ns = now
        self._bucket_spent = spent

    def bucket_wait_ns(self, now: int, step: int) -> int:
        """How long until it may submit again; 0 at once.

        A token bucket: it holds one second's rate, what is computed leaves it, also below zero, and a new request
        needs it above zero.
        """
        rate = self.knobs.token_rate
        if rate is None:
            return 0
        self.settle_bucket(now, step)
        return 0 if self._bucket_level > 0 else -self._bucket_level // rate + 1


class Tenants:
    """All tenants that have something here, and the last ones that had."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last_number = 0
        self._default = TenantKnobs()
        self._named: dict[str, TenantKnobs] = {}
        self.configure(config, 0, 0)

    def get(self, name: str, now: int) -> Tenant:
        """The tenant's account, made when it is first heard of."""
        tenant = self._tenants.get(name)
        if tenant is None:
            self._last_number += 1
            tenant = self._tenants[name] = Tenant(name, self._knobs(name), now, self._last_number)
        return tenant

    def _knobs(self, name: str) -> TenantKnobs:
        return self._named.get(name, self._default)

    def configure(self, config: SchedulingConfig, now: int, step: int) -> None:
        """Other weights and limits, after that completed step."""
        self._default = TenantKnobs(
            max_num_seqs=config.tenant_max_num_seqs,
            max_num_queued_reqs=config.tenant_max_num_queued_reqs,
            token_rate=config.tenant_token_rate,
        )
        self._named = dict(parse_rule(rule, self._default) for rule in config.tenants)
        for tenant in self._tenants.values():
            tenant.change_knobs(self._knobs(tenant.name), now, step)

    def enter(self, tenant: Tenant) -> None:
        """One more request of it lives here."""
        tenant.num_requests += 1
        self._idle.pop(tenant.name, None)

    def leave(self, tenant: Tenant) -> None:
        """One less. Accounts of tenants that have nothing here are kept up to a bound, the longest idle go first."""
        tenant.num_requests -= 1
        if tenant.num_requests == 0:
            self._idle[tenant.name] = None
            while len(self._idle) > _MAX_IDLE:
                name, _ = self._idle.popitem(last=False)
                del self._tenants[name]

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())
