"""What a simulation gave: latencies, throughput, fairness, memory, as figures.

Owns the measuring of one run. Times in a report are milliseconds and seconds, as people read them.
"""

from array import array
from collections import Counter

import msgspec

from chairlift.ipc import front
from scheduler_svc.core.core import Core
from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.sim.histogram import Histogram
from scheduler_svc.sim.workload import Arrival

_MS = 1_000_000
_S = 1_000_000_000


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must meet to count towards goodput."""

    ttft_ms: float = 1000.0
    tpot_ms: float = 100.0
    """Mean time per output token after the first."""


class Spread(msgspec.Struct, frozen=True):
    """A distribution in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share."""

    requests: int
    tokens: int
    """Prompt tokens that were not cached, and output tokens."""
    mean_ttft_ms: float
    p99_ttft_ms: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run."""

    duration_s: float
    requests: int
    refused: int
    steps: int
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Spread
    itl_ms: Spread
    queue_ms: Spread
    e2e_ms: Spread
    goodput_per_s: float
    """Requests a second that met the objective."""
    goodput_share: float
    preemptions: int
    swapped_blocks: int
    """Copies of a block to or from the host."""
    cached_share: float
    """Of prompt tokens."""
    mean_batch: float
    """Decode rows a step."""
    kv_mean: float
    """Share of blocks in use, over time."""
    kv_peak: float
    fairness: float
    """Jain's index of the tenants' tokens: 1 when all have the same."""
    prediction_error: float
    """Of predicted TTFT: mean of |predicted - actual| / actual, recently."""
    tenants: dict[str, TenantFigures]


class Sample(msgspec.Struct, frozen=True):
    """The replica at one moment, for plots."""

    at_s: float
    running: int
    waiting: int
    kv_used: float


class Outcome:
    """Observes a run (see `simulator.Observer`) and sums it up."""

    def __init__(self, objective: Objective, sample_every_s: float = 1.0) -> None:
        self._objective = objective
        self._every = round(sample_every_s * _S)
        self._next_sample = 0
        self._tenants: list[str] = []
        self._names: dict[str, int] = {}
        self._owner = array("I", [0])
        self._prompt = array("I", [0])
        self.ttft = Histogram()
        self._queue = Histogram()
        self.e2e = Histogram()
        self.itl = Histogram()
        self._tenant_ttft: dict[int, Histogram] = {}
        self._tenant_tokens: Counter[int] = Counter()
        self._num_finished = self._num_refused = self._num_good = self._num_outputs = self._num_cached = 0
        self._num_prompt = self._preemptions = self._steps = self._num_decodes = 0
        self._last_result = 0
        self._kv_area = 0.0
        self._kv_peak = 0.0
        self._last_core: Core | None = None
        self.samples: list[Sample] = []
        self.ttfts_ms: array[float] = array("f")
        """Of each finished request, in order of their ends."""

    def arrived(self, number: int, arrival: Arrival) -> None:
        """See Observer."""
        owner = self._names.get(arrival.tenant)
        if owner is None:
            owner = self._names[arrival.tenant] = len(self._tenants)
            self._tenants.append(arrival.tenant)
            self._tenant_ttft[owner] = Histogram()
        self._owner.append(owner)
        self._prompt.append(arrival.prompt_len)

    def refused(self, number: int, message: front.Refused, now: int) -> None:
        """See Observer."""
        self._num_refused += 1

    def finished(self, number: int, message: front.Finished, now: int) -> None:
        """See Observer."""
        owner = self._owner[number]
        self._num_finished += 1
        self._num_outputs += message.num_tokens
        self._num_prompt += self._prompt[number]
        self._num_cached += message.cached_tokens
        self._preemptions += message.preemptions
        self._tenant_tokens[owner] += self._prompt[number] - message.cached_tokens + message.num_tokens
        self._queue.add(message.queue_ns)
        self.e2e.add(message.total_ns)
        if message.ttft_ns is not None:
            self.ttft.add(message.ttft_ns)
            self.ttfts_ms.append(message.ttft_ns / _MS)
            self._tenant_ttft[owner].add(message.ttft_ns)
            tpot_ns = (message.total_ns - message.ttft_ns) / max(message.num_tokens - 1, 1)
            objective = self._objective
            if message.ttft_ns <= objective.ttft_ms * _MS and tpot_ns <= objective.tpot_ms * _MS:
                self._num_good += 1

    def stepped(self, core: Core, shape: StepShape, began: int, now: int) -> None:
        """See Observer. Whoever decodes in a step had its last token in the one before."""
        self._steps += 1
        self._num_decodes += shape.num_decodes
        if shape.num_decodes:
            self.itl.add(now - self._last_result, shape.num_decodes)
        pool = core.state.pool
        used = pool.num_used / pool.num_blocks if pool.num_blocks else 0.0
        self._kv_area += used * (now - began)
        self._kv_peak = max(self._kv_peak, used)
        self._last_result = now
        self._last_core = core
        if now >= self._next_sample:
            self._next_sample = now + self._every
            load = core.load()
            self.samples.append(Sample(now / _S, load.running, load.waiting, used))

    def resumed(self, gap_ns: int) -> None:
        """See Observer."""
        self.itl.add(gap_ns)

    def report(self, duration_ns: int, num_swapped_blocks: int = 0) -> Report:
        """The figures, once the run is over."""
        seconds = max(duration_ns, 1) / _S
        forecast = self._last_core.state.forecast if self._last_core is not None else None
        return Report(
            duration_s=seconds,
            requests=self._num_finished,
            refused=self._num_refused,
            steps=self._steps,
            output_tokens_per_s=self._num_outputs / seconds,
            requests_per_s=self._num_finished / seconds,
            ttft_ms=_spread(self.ttft),
            itl_ms=_spread(self.itl),
            queue_ms=_spread(self._queue),
            e2e_ms=_spread(self.e2e),
            goodput_per_s=self._num_good / seconds,
            goodput_share=self._num_good / max(self._num_finished + self._num_refused, 1),
            preemptions=self._preemptions,
            swapped_blocks=num_swapped_blocks,
            cached_share=self._num_cached / max(self._num_prompt, 1),
            mean_batch=self._num_decodes / max(self._steps, 1),
            kv_mean=self._kv_area / max(duration_ns, 1),
            kv_peak=self._kv_peak,
            fairness=_jain([self._tenant_tokens[owner] for owner in range(len(self._tenants))]),
            prediction_error=0.0 if forecast is None else forecast.mean_relative_error,
            tenants={name: self._tenant(owner) for owner, name in enumerate(self._tenants)},
        )

    def _tenant(self, owner: int) -> TenantFigures:
        ttft = self._tenant_ttft[owner]
        return TenantFigures(
            requests=ttft.count,
            tokens=self._tenant_tokens[owner],
            mean_ttft_ms=ttft.mean / _MS,
            p99_ttft_ms=ttft.quantile(0.99) / _MS,
        )


def _spread(histogram: Histogram) -> Spread:
    p50, p90, p99 = (histogram.quantile(share) / _MS for share in (0.5, 0.9, 0.99))
    return Spread(histogram.mean / _MS, p50, p90, p99, histogram.largest / _MS)


def _jain(shares: list[int]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
