"""When requests are sent in an open loop: offsets from the start, in seconds. Random by a seed, clockless."""

import itertools
from collections.abc import Callable, Iterator

import msgspec
import numpy

from deploy.bench.workload.prompts import Purpose, random_stream


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """An open loop: requests come whether or not earlier ones have ended."""

    rate: float
    """Mean requests a second."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 comes in bursts, infinite is
    constant. Named as in vLLM's benchmark."""
    seed: int = 0

    def offsets(self) -> Iterator[float]:
        """Endless, ascending; the first request comes after one gap."""
        draw = self._gap_source(random_stream(self.seed, Purpose.ARRIVAL))
        return itertools.accumulate(draw() for _ in itertools.count())

    def _gap_source(self, random: numpy.random.Generator) -> Callable[[], float]:
        if self.burstiness == float("inf"):
            return lambda: 1 / self.rate
        scale = 1 / (self.rate * self.burstiness)
        return lambda: float(random.gamma(self.burstiness, scale))
