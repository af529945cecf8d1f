"""More and more users at once on one stack, until more of them give no more tokens."""

import msgspec

from chairlift.runtime.settings_loader import load_settings
from deploy.bench.batching.parts import Sweep, SweepPoint, SweepRecipe
from deploy.bench.load.client import TargetModel
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient
from deploy.bench.measure import Measurement, measure
from deploy.bench.output.result import RunResult
from deploy.bench.stack import OwnStack, run_own_stack
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.prompts import WARMUP_SEED_STEP

_NUM_WARMUPS = 4


async def run_sweep(recipe: SweepRecipe) -> Sweep:
    """One measurement for each number of users. Raises SettingsError, TargetError, and what the launcher raises."""
    settings = load_settings(None, recipe.settings)
    points: list[SweepPoint] = []
    async with run_own_stack(settings) as stack:
        clock = MonotonicClock()
        client = GrpcClient(stack.target, clock)
        try:
            model = await client.describe()
            for repetition, number in enumerate(recipe.users):
                num_requests = max(recipe.requests_a_user * number, 8)
                wanted = _plan(stack, model, recipe.workload, number, num_requests, repetition)
                result = await measure(client, wanted, clock)
                points.append(_to_point(number, result))
        finally:
            await client.close()
    return Sweep(points=points, conditions=result.conditions, recipe=recipe)


def _plan(
    stack: OwnStack, model: TargetModel, workload: str, users: int, num_requests: int, repetition: int
) -> Measurement:
    options = WorkloadOptions(seed=repetition, vocab_size=model.vocab_size, max_model_len=model.max_model_len)
    warmup = msgspec.structs.replace(options, seed=repetition + WARMUP_SEED_STEP)
    return Measurement(
        backend="chairlift",
        model=model,
        workload=find_workload(workload, options),
        plan=LoadPlan(concurrency=users, num_sessions=num_requests),
        warmup=find_workload(workload, warmup),
        num_warmups=_NUM_WARMUPS,
        ops=stack.ops,
        settings=stack.settings,
        is_own_stack=True,
    )


def _to_point(users: int, result: RunResult) -> SweepPoint:
    summary = result.summarize()
    ttft, itl = summary.latencies["ttft"].percentiles, summary.latencies["itl"].percentiles
    return SweepPoint(
        users=users,
        output_throughput=summary.output_throughput,
        median_ttft_ms=ttft[50.0],
        p99_ttft_ms=ttft[99.0],
        median_itl_ms=itl[50.0],
        p99_itl_ms=itl[99.0],
        kv_used_share_max=None if result.server is None else result.server.kv_used_share_max,
        preemptions=summary.preemptions,
    )
