"""What the scheduler's report compares: one variable each, everything else the same. Values only."""

import msgspec

from deploy.bench.study import reasons
from deploy.bench.study.load import StudyLoad
from deploy.bench.study.model_cost import ModelCost


class LabelledLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load with its name in tables and in names of files."""

    label: str
    load: StudyLoad
    rate_scales: tuple[float, ...] = ()
    """Where the load is raised step by step; empty: as it is."""


class Variant(msgspec.Struct, frozen=True):
    """One value of the variable."""

    label: str
    overrides: tuple[str, ...] = ()


class StudyExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """One question."""

    name: str
    title: str
    variable: str
    base: tuple[str, ...] = ()
    """Settings of every variant."""
    variants: tuple[Variant, ...]
    loads: tuple[LabelledLoad, ...]
    cost: ModelCost = ModelCost()
    chart: str = "itl"
    """Of `output.charts`, drawn for each load that is not raised."""
    equal_ms: float = 0.0
    """Where a load is raised: the median end-to-end latency at which throughputs are compared."""
    equal_scale: float = 0.0
    """And the load at which latencies are."""
    why: str
    """What explains the result."""


def azure_load(trace: str, num_requests: int, rate_scale: float, flood_rate: float | None = None) -> StudyLoad:
    """The first requests of the Azure conversation trace."""
    return StudyLoad(source=trace, num_requests=num_requests, rate_scale=rate_scale, flood_rate=flood_rate)


def heavy_load(num_requests: int, rate: float) -> StudyLoad:
    """A heavy-tailed mix: most are short, a few enormous."""
    return StudyLoad(source="poisson", lengths="heavy", num_requests=num_requests, rate=rate)


def all_experiments(trace: str, num_requests: int) -> tuple[StudyExperiment, ...]:
    """Those of the report, in its order; `trace` is the path of the Azure conversation trace."""
    azure = LabelledLoad(label="azure", load=azure_load(trace, num_requests, 2.0))
    heavy = LabelledLoad(label="heavy", load=heavy_load(num_requests, 10.0))
    return (
        StudyExperiment(
            name="batching",
            title="Static against continuous batching",
            variable="scheduler.batching",
            variants=(Variant("static", ("scheduler.batching=static",)), Variant("continuous")),
            loads=(
                LabelledLoad(label="azure", load=azure.load, rate_scales=(0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)),
                LabelledLoad(
                    label="heavy", load=heavy_load(num_requests, 8.0), rate_scales=(0.25, 0.5, 1.0, 1.5, 2.0, 2.5)
                ),
            ),
            equal_ms=5000.0,
            equal_scale=1.0,
            why=reasons.BATCHING,
        ),
        StudyExperiment(
            name="chunks",
            title="Whole prefill against chunks",
            variable="scheduler.long_prefill_token_threshold",
            base=("scheduler.max_num_batched_tokens=16384",),
            variants=(
                Variant("whole"),
                Variant("chunks of 512", ("scheduler.long_prefill_token_threshold=512",)),
            ),
            loads=(azure, heavy),
            cost=ModelCost(max_num_batched_tokens=16_384),
            why=reasons.CHUNKS,
        ),
        StudyExperiment(
            name="itl-target",
            title="With and without a target for inter-token latency",
            variable="scheduler.itl_target_ms",
            variants=(Variant("none"), Variant("30 ms", ("scheduler.itl_target_ms=30",))),
            loads=(azure, heavy),
            why=reasons.ITL_TARGET,
        ),
        StudyExperiment(
            name="fairness",
            title="First come, first served against fair shares, one tenant flooding",
            variable="scheduler.policy",
            variants=(Variant("fcfs"), Variant("fair", ("scheduler.policy=fair",))),
            loads=(LabelledLoad(label="azure", load=azure_load(trace, num_requests // 8, 0.2, flood_rate=24.0)),),
            chart="waiting",
            why=reasons.FAIRNESS,
        ),
        StudyExperiment(
            name="preemption",
            title="Recomputing against swapping, memory short",
            variable="scheduler.preemption",
            variants=(
                Variant("recompute", ("scheduler.preemption=recompute",)),
                Variant("swap", ("scheduler.preemption=swap",)),
                Variant("auto", ("scheduler.preemption=auto",)),
            ),
            loads=(azure, heavy),
            cost=ModelCost(num_blocks=2500, num_host_blocks=20_000),
            why=reasons.PREEMPTION,
        ),
    )
