"""The peers' workload through the whole service: the figures that stand beside those of other servers.

Mixed requests are sent all at once to a stack with so many seats, as the peers were measured; greedy, EOS ignored, no
prefix cache. Medians over repetitions, each with ids of its own.
"""

import statistics
from collections.abc import Sequence

import msgspec
import numpy

from chairlift.runtime.settings import Settings
from deploy.bench.errors import BenchError
from deploy.bench.load.client import StreamClient
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadGenerator, LoadPlan
from deploy.bench.load.grpc_client import GrpcClient
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.observe.machine import ForeignLoad
from deploy.bench.observe.processes import Memory
from deploy.bench.stack import run_own_stack
from deploy.bench.workload.lengths import LengthRange
from deploy.bench.workload.peers import PREFILL_TOKENS, PeersShape, PeersWorkload
from deploy.bench.workload.prompts import TokenIds
from deploy.bench.workload.synthetic import RandomWorkload

_TIMEOUT_S = 1800.0
_WARMUPS = 4
_WARMUP_SEED = 30_000


class Spread(msgspec.Struct, frozen=True):
    """One figure over the repetitions."""

    median: float
    low: float
    high: float


class PeersResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by name, and what disturbed them."""

    figures: dict[str, Spread]
    memory: Memory | None
    foreign_cores: float | None
    repetitions: int


class PeersRunError(BenchError):
    """A request of the workload went wrong: there are no figures."""


async def run_peers_workload(settings: Settings, shape: PeersShape, repetitions: int) -> PeersResult:
    """Starts a stack by `settings`, measures, stops it. Raises BenchError and what the launcher raises."""
    clock = MonotonicClock()
    async with run_own_stack(settings) as stack:
        client = GrpcClient(stack.target, clock)
        try:
            await _warm_up(client, clock)
            foreign = ForeignLoad()
            runs = [await _run_once(client, clock, shape, repetition) for repetition in range(repetitions)]
            foreign_cores = foreign.cores()
        finally:
            await client.close()
        memory = stack.measure_memory()
    figures = {name: _spread([run[name] for run in runs]) for name in runs[0]}
    return PeersResult(figures=figures, memory=memory, foreign_cores=foreign_cores, repetitions=repetitions)


def work_out(shape: PeersShape, records: Sequence[RequestRecord]) -> dict[str, float]:
    """The figures of one repetition, defined as the peers' scripts define them."""
    match shape:
        case "single":
            (one,) = records
            decoded_s = (one.delta_ns[-1] - one.delta_ns[0]) / 1e9
            return {"decode_tok_s": (one.output_tokens - one.delta_tokens[0]) / decoded_s}
        case "prefill":
            (one,) = records
            return {"prefill_tok_s": PREFILL_TOKENS / (one.ttft_ms / 1e3)}
        case "mixed":
            start_ns = min(record.intended_ns for record in records)
            wall_s = (max(record.ended_ns for record in records) - start_ns) / 1e9
            gaps = [gap for record in records for gap in record.inter_token_ms()]
            p50, p99 = numpy.percentile(gaps, (50, 99))
            return {
                "output_tok_s": sum(record.output_tokens for record in records) / wall_s,
                "ttft_mean_s": statistics.fmean(record.ttft_ms for record in records) / 1e3,
                "itl_p50_ms": float(p50),
                "itl_p99_ms": float(p99),
            }


async def _warm_up(client: StreamClient, clock: MonotonicClock) -> None:
    workload = RandomWorkload(
        name="warm-up", ids=TokenIds(_WARMUP_SEED), prompt=LengthRange(40, 40), output=LengthRange(8, 8)
    )
    _check(await LoadGenerator(client, LoadPlan(num_sessions=_WARMUPS), clock).run(workload.sessions()))


async def _run_once(
    client: StreamClient, clock: MonotonicClock, shape: PeersShape, repetition: int
) -> dict[str, float]:
    workload = PeersWorkload(shape=shape, repetition=repetition)
    records = await LoadGenerator(client, LoadPlan(timeout_s=_TIMEOUT_S), clock).run(workload.sessions())
    _check(records)
    return work_out(shape, records)


def _check(records: Sequence[RequestRecord]) -> None:
    wrong = [record for record in records if record.outcome is not Outcome.OK]
    if wrong:
        first = wrong[0]
        raise PeersRunError(
            f"{len(wrong)} of {len(records)} requests went wrong; the first: {first.outcome} {first.reason}"
        )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
