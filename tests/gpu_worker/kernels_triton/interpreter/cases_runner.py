"""The runner for CUDA against the CPU's, plan by plan, with graphs and the device replaced by stand-ins."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, NeedSnapshot, Plan, PromptLogprobs, RowLogprobs, StepDone, StepFailed
from gpu_worker.cuda_runner.graphs import Body
from gpu_worker.cuda_runner.pending import PendingStep
from gpu_worker.cuda_runner.runner import CudaOptions, CudaRunner
from gpu_worker.execution import Finished, OverlappedExecution
from gpu_worker.results import Result
from gpu_worker.runner import Runner
from tests.gpu_worker.kernels_triton.interpreter.plans import EPOCH, PlanMaker
from tests.gpu_worker.kernels_triton.interpreter.tiny_decoder import (
    DECODERS,
    LIMITS,
    NAN_TOKEN,
    make_cache,
    reference_decoder,
)

BUCKETS = (1, 3, 5)
"""Not up to the batch's size: larger decodes take the way without a graph."""


class Replayer:
    """Stands in for CUDA graphs: a replay is the work itself. As a capture does, it runs the work once before."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.num_replays = 0

    def capture(self, body: Body) -> Body:
        body()

        def replay() -> None:
            self.num_replays += 1
            body()

        return replay


def runner_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and check of each case; a check returns a figure or raises."""
    yield "30 plans one after another", partial(_check_plans, 11, 30, 0, "stand-in")
    yield "30 plans, one ahead", partial(_check_plans, 3, 30, 1, "stand-in")
    yield "12 plans as the service has them carried out", partial(_check_execution, 5, 12)
    yield "8 plans with the kernels", partial(_check_kernels, 4, 8, "triton")
    yield "6 plans with another kernel for decode rows", partial(_check_kernels, 4, 6, "cuda")
    yield "a row without logits fails its step and those behind it", _check_nan


def _runners(decoder: str, dtype: torch.dtype) -> tuple[Runner, CudaRunner, Replayer]:
    replayer = Replayer()
    options = CudaOptions(BUCKETS, max_logprobs=4)
    cuda = CudaRunner(DECODERS[decoder](dtype), make_cache(dtype), LIMITS, EPOCH, options, replayer)
    return Runner(reference_decoder(dtype), make_cache(dtype), LIMITS, EPOCH), cuda, replayer


def _check_plans(seed: int, count: int, ahead: int, decoder: str) -> float:
    reference, cuda, replayer = _runners(decoder, torch.float32)
    maker = PlanMaker(seed)
    pending: deque[PendingStep] = deque()
    wanted: deque[Result | None] = deque()
    num_tokens = num_swapped = 0
    for index in range(count):
        plan = maker.next(reset=index == 0)
        num_swapped += len(plan.swap_in) // 8
        wanted.append(reference.execute(plan))
        launched = cuda.launch(plan)
        assert isinstance(launched, PendingStep), f"plan {index} gave {launched}"
        pending.append(launched)
        if len(pending) > ahead:
            num_tokens += _compare(cuda.finish(pending.popleft()), wanted.popleft())
    while pending:
        num_tokens += _compare(cuda.finish(pending.popleft()), wanted.popleft())
    assert replayer.num_replays > count // 7, f"only {replayer.num_replays} steps took a graph"
    assert num_tokens > count
    assert num_swapped > 2, f"only {num_swapped} blocks were swapped in"
    return float(replayer.num_replays)


def _check_execution(seed: int, count: int) -> float:
    """Two in flight; every result comes once, in order."""
    reference, cuda, _ = _runners("stand-in", torch.float32)
    maker = PlanMaker(seed)
    wanted: deque[Result | None] = deque()
    finished: list[Finished] = []
    execution = OverlappedExecution(cuda)
    try:
        for index in range(count):
            plan = maker.next(reset=index == 0)
            wanted.append(reference.execute(plan))
            while not execution.has_room:
                finished += execution.finished()
            execution.submit(plan)
        finished += execution.drain()
    finally:
        execution.close()
    assert len(finished) == count
    return float(sum(_compare(found, wanted.popleft()) for _, found in finished))


def _compare(found: Result | None, wanted: Result | None) -> int:
    assert isinstance(wanted, StepDone), wanted
    assert isinstance(found, StepDone), found
    mine, theirs = (np.frombuffer(done.sampled, "<u4").tolist() for done in (found, wanted))
    assert mine == theirs, f"step {wanted.step}: {mine} != {theirs}"
    assert found.ends == wanted.ends
    assert [part.index for part in found.logprobs] == [part.index for part in wanted.logprobs]
    mine_described: list[RowLogprobs | PromptLogprobs] = [*found.logprobs, *found.prompt_logprobs]
    theirs_described: list[RowLogprobs | PromptLogprobs] = [*wanted.logprobs, *wanted.prompt_logprobs]
    for one, other in zip(mine_described, theirs_described, strict=True):
        assert one.token_ids == other.token_ids
        values = [np.frombuffer(part.logprobs, "<f4") for part in (one, other)]
        np.testing.assert_allclose(values[0], values[1], atol=1e-4)
    return len(mine)


def _check_kernels(seed: int, count: int, decoder: str) -> float:
    """With bf16 and other orders of summation tokens may differ where logits nearly tie: most must agree."""
    reference, cuda, _ = _runners(decoder, torch.bfloat16)
    maker = PlanMaker(seed)
    same = total = 0
    for index in range(count):
        plan = maker.next(reset=index == 0)
        found, wanted = cuda.execute(plan), reference.execute(plan)
        assert isinstance(found, StepDone), found
        assert isinstance(wanted, StepDone), wanted
        tokens = [np.frombuffer(done.sampled, "<u4") for done in (found, wanted)]
        same += int((tokens[0] == tokens[1]).sum())
        total += len(tokens[0])
    assert same >= 0.8 * total, f"{same} of {total} tokens agree"
    return same / total


def _check_nan() -> float:
    reference, cuda, _ = _runners("stand-in", torch.float32)
    good = random.Random(1).sample(range(10, 140), 5)
    plans = [
        Plan(EPOCH, 1, True, boarded=(_row(0, good), _row(1, [5, NAN_TOKEN])), chunks=_pack(0, 5, 1, 2)),
        Plan(EPOCH, 2, decode=_pack(0, 1)),
        Plan(EPOCH, 3, decode=_pack(0)),
        Plan(EPOCH, 4, True, boarded=(_row(2, good),), chunks=_pack(2, 5)),
        Plan(EPOCH, 5, decode=_pack(2)),
    ]
    first, second = (cuda.launch(plan) for plan in plans[:2])
    assert isinstance(first, PendingStep)
    assert isinstance(second, PendingStep)
    failed = cuda.finish(first)
    assert isinstance(failed, StepFailed)
    assert np.frombuffer(failed.rows, "<u4").tolist() == [1]
    assert cuda.finish(second) is None
    assert isinstance(cuda.execute(plans[2]), NeedSnapshot)
    for plan in plans[3:]:
        _compare(cuda.execute(plan), reference.execute(plan))
    assert cuda.execute(Plan(EPOCH + 1, 6)) is None
    return 0.0


def _row(row: int, tokens: list[int]) -> BoardedRow:
    return BoardedRow(row, _pack(*tokens), len(tokens), 0, _pack(row), 0, SamplingParams(temperature=0.0))


def _pack(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()
