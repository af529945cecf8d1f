"""The arrivals of a study: a public trace, or drawn from a distribution."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from scheduler_svc.sim import workload
from scheduler_svc.sim.traces import MAX_NS, TraceError, read_trace
from scheduler_svc.sim.workload import Arrival

DRAWN = ("poisson", "burst")
LENGTHS = {
    "conversation": (workload.CONVERSATION_PROMPTS, workload.CONVERSATION_OUTPUTS),
    "heavy": (workload.HEAVY_PROMPTS, workload.HEAVY_OUTPUTS),
}
DEFAULT_NUM_REQUESTS = 2000
FLOOD = "flood"
_MAX_FLOOD = 10_000_000


class StudyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives when. The same each time that it is asked for."""

    source: str
    """A trace's path, or one of DRAWN."""
    rate: float = 8.0
    """Requests a second of what is drawn."""
    rate_scale: float = 1.0
    """Factor on the rate, of traces too."""
    num_requests: int | None = None
    """None: all of a trace, DEFAULT_NUM_REQUESTS of what is drawn."""
    lengths: str = "conversation"
    """Of what is drawn: one of LENGTHS."""
    num_tenants: int = 1
    """The requests are dealt out to so many, the second has half of the first's, the third a third of them."""
    flood_rate: float | None = None
    """Requests a second of one more tenant, FLOOD, for as long as the others send."""
    seed: int = 0

    def arrivals(self) -> Iterator[Arrival]:
        """In order of time. Raises TraceError (also for what takes too long, or too many) and OSError."""
        own = islice(_dealt(_in_time(self._undealt()), self.num_tenants, self.seed), self.num_requests)
        return own if self.flood_rate is None else self._flooded(list(own), self.flood_rate)

    def _flooded(self, own: list[Arrival], rate: float) -> Iterator[Arrival]:
        until = own[-1].at_ns if own else 0
        count = round(rate * until / 1e9)
        if count > _MAX_FLOOD:
            raise TraceError(f"the flood would be {count} requests, at most {_MAX_FLOOD} can be")
        return workload.merged(iter(own), workload.poisson(rate, count, self.seed + 1, tenant=FLOOD))

    def _undealt(self) -> Iterator[Arrival]:
        prompts, outputs = LENGTHS[self.lengths]
        rate, count = self.rate * self.rate_scale, self.num_requests or DEFAULT_NUM_REQUESTS
        match self.source:
            case "poisson":
                return workload.poisson(rate, count, self.seed, prompts, outputs)
            case "burst":
                return workload.burst(rate, count, self.seed, prompts=prompts, outputs=outputs)
            case path:
                return read_trace(Path(path), self.rate_scale)


def _in_time(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    for arrival in arrivals:
        if arrival.at_ns > MAX_NS:
            raise TraceError(f"requests would arrive for more than {MAX_NS // (86_400 * 10**9)} days: a higher rate?")
        yield arrival


def _dealt(arrivals: Iterator[Arrival], num_tenants: int, seed: int) -> Iterator[Arrival]:
    if num_tenants == 1:
        yield from arrivals
        return
    chance = random.Random(seed)
    names: Sequence[str] = [f"tenant-{number}" for number in range(1, num_tenants + 1)]
    shares = [1 / number for number in range(1, num_tenants + 1)]
    for arrival in arrivals:
        yield arrival._replace(tenant=chance.choices(names, shares)[0])
