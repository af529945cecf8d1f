"""Overload: what counts as sustained, what is complained of, and the stand-in worker's answers."""

import time
from typing import Any

import msgspec
import pytest

from chairlift.client import AsyncClient, RetryPolicy
from chairlift.ipc import device
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.settings import Settings
from deploy.bench.overload.load import Answer, RateFigures, _ask, _sum_up
from deploy.bench.overload.run import OverloadReport, render
from deploy.bench.overload.worker import PROMPT_TOKEN_NS, ROW_NS, STEP_NS, WorkerStandIn, _cost_ns

GOOD = Answer(ttft_s=0.2, itl_s=0.05)


def figures(*answers: Answer, rate: float = 4.0) -> RateFigures:
    return _sum_up(rate, 10.0, answers)


@pytest.mark.parametrize(
    "bad",
    [
        Answer(ttft_s=1.1, itl_s=0.05),
        Answer(ttft_s=0.2, itl_s=0.3),
        Answer(refused_s=0.01, has_retry_time=True),
        Answer(ttft_s=0.2, itl_s=0.05, failed="STEP_FAILED"),
    ],
)
def test_a_rate_is_sustained_only_when_everybody_is_served_in_time(bad: Answer) -> None:
    assert figures(*[GOOD] * 40).is_sustained
    found = figures(*[GOOD] * 40, bad)
    assert not found.is_sustained
    assert (found.goodput, found.requests) == (4.0, 41)


async def test_a_server_that_is_not_there_refuses() -> None:
    """The last thing that happens to a rate must not be an error of ours."""
    async with AsyncClient("127.0.0.1:1", retry=RetryPolicy(max_attempts=1)) as client:
        answer = await _ask(client, 0, time.monotonic())
    assert answer.refused_s is not None
    assert not answer.is_good


def report(**changes: RateFigures) -> OverloadReport:
    many = figures(*[GOOD] * 40, *[Answer(refused_s=0.01, has_retry_time=True)] * 60)
    overload = {"2x": many, "5x": many, **changes}
    memory = {"before": 100, "2x": 101, "5x": 102}
    return OverloadReport(
        sustainable_rate=4.0, rates=[figures(*[GOOD] * 40)], overload=overload, after=figures(GOOD), memory_bytes=memory
    )


def test_what_overload_must_not_do_is_complained_of() -> None:
    assert report().complaints == []
    assert "all as it should be" in render(report())
    fewer = figures(*[GOOD] * 30)
    slow = figures(*[GOOD] * 40, Answer(refused_s=0.5, has_retry_time=True))
    silent = figures(*[GOOD] * 40, Answer(refused_s=0.01))
    for changed, word in ((fewer, "goodput"), (slow, "refusals take"), (silent, "1 without retry time")):
        (complaint,) = report(**{"5x": changed}).complaints
        assert word in complaint
    grown = msgspec.structs.replace(report(), memory_bytes={"before": 100, "2x": 101, "5x": 130})
    assert grown.complaints == ["memory is not flat"]


def test_the_stand_in_answers_as_a_device_of_its_cost_would() -> None:
    no_socket: Any = None  # nothing is sent
    worker = WorkerStandIn(Settings(), no_socket)
    row = device.BoardedRow(3, pack_u32(range(40)), 40, 0, pack_u32([1, 2, 3]), 0, SamplingParams())
    first = device.Plan(1, 1, True, boarded=(row,), chunks=pack_u32([3, 30]))
    second = device.Plan(1, 2, chunks=pack_u32([3, 10]))
    third = device.Plan(1, 3, decode=pack_u32([3]))
    assert [len(worker._done(plan).sampled) // 4 for plan in (first, second, third)] == [0, 1, 1]
    assert _cost_ns(first) == STEP_NS + 30 * PROMPT_TOKEN_NS
    assert _cost_ns(third) == STEP_NS + ROW_NS
