"""One study: a load under given knobs on a given device, and what came of it."""

from collections.abc import Iterator

import msgspec

from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.sim.outcome import Objective, Outcome, Report, Sample
from scheduler_svc.sim.simulator import SimulatedHardware, Simulator
from scheduler_svc.sim.workload import Arrival


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, and what plots need."""

    report: Report
    samples: list[Sample]
    ttft_ms: list[tuple[float, float]]
    """Points of the distribution: milliseconds, percent of requests."""
    itl_ms: list[tuple[float, float]]


def run_study(
    arrivals: Iterator[Arrival],
    config: SchedulingConfig,
    hardware: SimulatedHardware,
    objective: Objective,
    sample_every_s: float = 1.0,
) -> StudyResult:
    """Raises what `arrivals` raises, and ValueError for knobs that contradict each other."""
    outcome = Outcome(objective, sample_every_s)
    simulator = Simulator(config, hardware, outcome)
    duration_ns = simulator.run(arrivals)
    return StudyResult(
        report=outcome.report(duration_ns, simulator.num_swapped_blocks),
        samples=outcome.samples,
        ttft_ms=outcome.ttft.cumulative(),
        itl_ms=outcome.itl.cumulative(),
    )
