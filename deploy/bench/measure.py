"""One run from beginning to end: warm-up, load, the server's account, the record of how it came about."""

import datetime
import gc
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.statistics import CONFIDENCE
from deploy.bench.load.client import StreamClient, TargetModel
from deploy.bench.load.clock import Clock
from deploy.bench.load.generator import LoadGenerator, LoadPlan
from deploy.bench.load.grpc_client import GrpcTarget
from deploy.bench.load.record import Outcome, RequestRecord
from deploy.bench.observe.generator_health import GeneratorHealth, watch_generator
from deploy.bench.observe.machine import MAX_FOREIGN_CORES, ForeignLoad, describe_machine, describe_software
from deploy.bench.observe.server import ServerWatch, sum_up, watch_server
from deploy.bench.output.result import RunConditions, RunResult
from deploy.bench.workload.request import Workload

WARMUP_CONCURRENCY = 4


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured."""

    backend: str
    model: TargetModel
    workload: Workload
    plan: LoadPlan
    warmup: Workload | None = None
    """Another draw of the workload, so that nothing measured is cached by it."""
    num_warmups: int = 0
    objectives: Objectives = Objectives()
    ops: GrpcTarget | None = None
    settings: dict[str, str] = {}
    is_own_stack: bool = False
    """Whether this process started the server: else the server's own work cannot be told from that of others."""
    label: str = ""


async def measure(
    client: StreamClient, wanted: Measurement, clock: Clock, on_end: Callable[[RequestRecord], None] | None = None
) -> RunResult:
    """Runs it once. What goes wrong with requests stands in the result. Raises TargetError for a bad `ops`."""
    await _warm_up(client, wanted, clock)
    gc.collect()
    # What exists by now is not looked at again: a collection in the middle of a run would show as latency.
    gc.freeze()
    foreign = ForeignLoad()
    try:
        async with watch_generator() as health, watch_server(wanted.ops, clock) as watch:
            records = await LoadGenerator(client, wanted.plan, clock, on_end).run(wanted.workload.sessions())
    finally:
        gc.unfreeze()
    foreign_cores = foreign.cores() if wanted.is_own_stack else None
    warnings = health.warnings() + _find_warnings(records, foreign_cores)
    return _finish(wanted, records, watch, health, warnings, foreign_cores)


async def measure_virtually(
    client: StreamClient, wanted: Measurement, clock: Clock, watching: AbstractAsyncContextManager[ServerWatch]
) -> RunResult:
    """The same where time is virtual: this machine's load does not matter, and the server's account is `watching`'s."""
    await _warm_up(client, wanted, clock)
    async with watching as watch:
        records = await LoadGenerator(client, wanted.plan, clock).run(wanted.workload.sessions())
    return _finish(wanted, records, watch, GeneratorHealth(), _find_warnings(records, None), None)


def _finish(
    wanted: Measurement,
    records: list[RequestRecord],
    watch: ServerWatch,
    health: GeneratorHealth,
    warnings: list[str],
    foreign_cores: float | None,
) -> RunResult:
    result = RunResult(
        label=wanted.label,
        conditions=_describe(wanted, watch, foreign_cores),
        server=sum_up(watch.samples, watch.missed),
        why_no_server=watch.why_none,
        generator=health,
        warnings=warnings + _find_gaps(watch),
        records=records,
        samples=watch.samples,
        iterations=watch.iterations,
    )
    _shift_to_start(result)
    return result


async def _warm_up(client: StreamClient, wanted: Measurement, clock: Clock) -> None:
    if wanted.warmup is None or not wanted.num_warmups:
        return
    plan = LoadPlan(
        concurrency=min(WARMUP_CONCURRENCY, wanted.num_warmups),
        num_sessions=wanted.num_warmups,
        timeout_s=wanted.plan.timeout_s,
    )
    await LoadGenerator(client, plan, clock).run(itertools.islice(wanted.warmup.sessions(), wanted.num_warmups))


def _describe(wanted: Measurement, watch: ServerWatch, foreign_cores: float | None) -> RunConditions:
    arrivals = wanted.plan.arrivals
    details = wanted.workload.describe()
    if wanted.plan.replay_speed is not None:
        details = details | {"replay_speed": wanted.plan.replay_speed}
    return RunConditions(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        backend=wanted.backend,
        model=wanted.model,
        workload=wanted.workload.name,
        workload_details=details,
        request_rate=None if arrivals is None else arrivals.rate,
        burstiness=None if arrivals is None else arrivals.burstiness,
        max_concurrency=wanted.plan.concurrency,
        num_warmups=wanted.num_warmups,
        objectives=wanted.objectives,
        machine=describe_machine(),
        software=describe_software(),
        config_revision=watch.config_revision,
        settings=wanted.settings,
        foreign_cores=foreign_cores,
    )


def _find_warnings(records: list[RequestRecord], foreign_cores: float | None) -> list[str]:
    found: list[str] = []
    if foreign_cores is not None and foreign_cores > MAX_FOREIGN_CORES:
        found.append(
            f"other programs of this machine used {foreign_cores:.2f} cores meanwhile: repeat when it is quiet"
        )
    num_short = sum(record.outcome is Outcome.SHORT for record in records)
    if num_short:
        found.append(f"{num_short} requests ended with fewer tokens than asked for: throughput is not comparable")
    if len(records) < 1 / (1 - CONFIDENCE):
        found.append(f"{len(records)} requests are too few for intervals to mean much")
    return found


def _find_gaps(watch: ServerWatch) -> list[str]:
    if not watch.missed:
        return []
    tried = len(watch.samples) + watch.missed
    return [f"{watch.missed} of {tried} looks at the server's account failed: its peaks may have been higher"]


def _shift_to_start(result: RunResult) -> None:
    """Makes times relative to the first intended sending, so that files of different runs can be laid over another."""
    start_ns = min((record.intended_ns for record in result.records), default=0)
    for record in result.records:
        record.intended_ns -= start_ns
        record.sent_ns -= start_ns
        record.ended_ns -= start_ns
        record.delta_ns = [at_ns - start_ns for at_ns in record.delta_ns]
    result.samples = [msgspec.structs.replace(one, at_ns=one.at_ns - start_ns) for one in result.samples]
    result.iterations = [msgspec.structs.replace(one, at_ns=one.at_ns - start_ns) for one in result.iterations]
