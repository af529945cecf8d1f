"""What steps cost on this machine: a stack of one's own under a short load, and what its scheduler learnt from it."""

import asyncio
import tempfile
from pathlib import Path

from deploy.bench.errors import BenchError
from deploy.bench.experiment.definition import Experiment, LoadChoice, Variant, WorkloadChoice
from deploy.bench.experiment.laboratory import OwnStackLaboratory
from deploy.bench.figures.slo import Objectives
from deploy.bench.study.model_cost import RECORDING_SUFFIX, read_model_cost
from scheduler_svc.sim.simulator import SimulatedHardware

_NUM_REQUESTS = 48
_CONCURRENCY = 12


def measure_model_cost(config: Path | None, overrides: tuple[str, ...]) -> SimulatedHardware:
    """Starts, loads and stops a stack by these settings; blocks for about a minute.

    Raises BenchError, SettingsError, and what the launcher raises.
    """
    with tempfile.TemporaryDirectory(prefix="chairlift-cost-") as folder:
        variant = Variant(
            name="measured",
            settings={"scheduler.record": folder},
            workload=WorkloadChoice(num_requests=_NUM_REQUESTS),
            load=LoadChoice(concurrency=_CONCURRENCY),
        )
        experiment = Experiment(
            name="model-cost",
            question="What does a step cost here?",
            variables=(),
            primary="output_throughput",
            variants=(variant,),
            objectives=Objectives(),
            repetitions=1,
            warmup=4,
        )
        asyncio.run(OwnStackLaboratory(config, overrides).run(experiment, variant, 0))
        recordings = sorted(Path(folder).glob(f"*{RECORDING_SUFFIX}"))
        if not recordings:
            raise BenchError("the scheduler left no recording")
        return read_model_cost(recordings[-1])
