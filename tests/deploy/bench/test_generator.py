"""The load generator in virtual time against scripted delays: what it reports must be those delays, exactly."""

import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.summary import summarize_run
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.generator import LoadGenerator, LoadPlan
from deploy.bench.load.record import RequestRecord
from deploy.bench.workload.request import BenchRequest, Session

Run = Callable[[Callable[[], Coroutine[Any, Any, list[RequestRecord]]]], list[RequestRecord]]


def sessions(number: int, output_tokens: int = 11) -> Iterator[Session]:
    request = BenchRequest(prompt=(1, 2, 3), output_tokens=output_tokens)
    return itertools.repeat(Session((request,)), number)


@pytest.fixture
def play(run_virtually: Run, virtual_clock: Any, scripted_client: Any) -> Callable[..., list[RequestRecord]]:
    def play(plan: LoadPlan, work: Iterator[Session], **script: Any) -> list[RequestRecord]:
        async def main() -> list[RequestRecord]:
            client = scripted_client(virtual_clock, **script)
            return await LoadGenerator(client, plan, virtual_clock).run(work)

        return run_virtually(main)

    return play


def test_scripted_delays_are_reported_exactly(play: Callable[..., list[RequestRecord]]) -> None:
    records = play(
        LoadPlan(arrivals=Arrivals(rate=50.0, seed=4), num_sessions=200), sessions(200), ttft_ms=120.0, itl_ms=7.0
    )
    summary = summarize_run(records, Objectives(ttft_ms=121, itl_ms=8))
    for name, delay in (("ttft", 120.0), ("itl", 7.0), ("icl", 7.0), ("tpot", 7.0), ("e2el", 190.0), ("queue", 0.0)):
        latency = summary.latencies[name]
        assert latency.mean == pytest.approx(delay, abs=1e-3)
        assert list(latency.percentiles.values()) == pytest.approx([delay] * 5, abs=1e-3)
    assert summary.completed == 200
    assert summary.total_output_tokens == 2200
    assert summary.request_goodput == pytest.approx(200 / summary.duration)


def test_a_stalled_server_delays_everyone_who_should_have_come_meanwhile(
    play: Callable[..., list[RequestRecord]],
) -> None:
    """Coordinated omission: one seat, one second a request, ten arrivals a second. The nth waits for all before it."""
    records = play(
        LoadPlan(arrivals=Arrivals(rate=10.0, burstiness=float("inf")), num_sessions=20),
        sessions(20, output_tokens=1),
        ttft_ms=1000.0,
        itl_ms=0.0,
        seats=1,
    )
    waits = [record.ttft_ms for record in records]
    assert waits == pytest.approx([1000.0 + 900.0 * number for number in range(20)], abs=0.01)


def test_a_cap_on_concurrency_hides_no_wait(play: Callable[..., list[RequestRecord]]) -> None:
    """The same with the queue in the generator instead of the server: latencies are the same."""
    records = play(
        LoadPlan(arrivals=Arrivals(rate=10.0, burstiness=float("inf")), concurrency=1, num_sessions=20),
        sessions(20, output_tokens=1),
        ttft_ms=1000.0,
        itl_ms=0.0,
    )
    assert [record.ttft_ms for record in records] == pytest.approx([1000.0 + 900.0 * n for n in range(20)], abs=0.01)
    assert summarize_run(records, Objectives()).max_concurrent_requests == 1


def test_a_closed_loop_keeps_its_users_busy(play: Callable[..., list[RequestRecord]]) -> None:
    records = play(LoadPlan(concurrency=3, num_sessions=9), sessions(100), ttft_ms=100.0, itl_ms=10.0)
    assert sorted(record.intended_ns - records[0].intended_ns for record in records) == pytest.approx(
        [0] * 3 + [200e6] * 3 + [400e6] * 3, abs=1e4
    )
    summary = summarize_run(records, Objectives())
    assert summary.max_concurrent_requests == 3
    assert summary.output_throughput == pytest.approx(99 / 0.6, rel=1e-4)


def test_no_session_starts_after_the_duration(play: Callable[..., list[RequestRecord]]) -> None:
    open_loop = LoadPlan(arrivals=Arrivals(rate=10.0, burstiness=float("inf")), duration_s=2.05)
    assert len(play(open_loop, sessions(100), ttft_ms=1.0, itl_ms=1.0)) == 20
    closed_loop = LoadPlan(concurrency=2, duration_s=1.0)
    assert len(play(closed_loop, sessions(100), ttft_ms=100.0, itl_ms=10.0)) == 10


def test_all_at_once(play: Callable[..., list[RequestRecord]]) -> None:
    records = play(LoadPlan(), sessions(5), ttft_ms=10.0, itl_ms=1.0)
    assert {record.intended_ns for record in records} == {records[0].intended_ns}
    assert len(records) == 5


def test_a_trace_is_replayed_at_its_own_times(play: Callable[..., list[RequestRecord]]) -> None:
    request = BenchRequest(prompt=(1,), output_tokens=1)
    trace = [Session((request,), at_s=at_s) for at_s in (0.0, 1.5, 1.5, 4.0)]
    records = play(LoadPlan(replay_speed=2.0), iter(trace), ttft_ms=1.0, itl_ms=0.0)
    start = records[0].intended_ns
    assert [(record.intended_ns - start) / 1e9 for record in records] == pytest.approx([0.0, 0.75, 0.75, 2.0])
    assert [record.sent_ns for record in records] == pytest.approx([record.intended_ns for record in records], abs=1e4)


def test_a_turn_sends_all_that_was_said_and_comes_after_its_pause(
    run_virtually: Run, virtual_clock: Any, scripted_client: Any
) -> None:
    session = Session(
        (
            BenchRequest(prompt=(70, 71), output_tokens=2),
            BenchRequest(prompt=(72,), output_tokens=1, think_s=3.0),
        )
    )
    calls: list[Any] = []

    async def main() -> list[RequestRecord]:
        client = scripted_client(virtual_clock, ttft_ms=100.0, itl_ms=50.0)
        records = await LoadGenerator(client, LoadPlan(concurrency=1), virtual_clock).run(iter([session]))
        calls.extend(call for _, call in client.calls)
        return records

    first, second = run_virtually(main)
    assert [call.prompt for call in calls] == [(70, 71), (70, 71, 0, 1, 72)]
    assert [call.wants_ids for call in calls] == [True, False]
    assert (second.intended_ns - first.ended_ns) / 1e9 == pytest.approx(3.0)
    assert second.ttft_ms == pytest.approx(100.0)
    assert (first.session, first.turn, second.session, second.turn) == (0, 0, 0, 1)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (float("inf"), 0.0)])
def test_arrivals_have_the_rate_and_burstiness_asked_for(burstiness: float, variation: float) -> None:
    """The gaps' coefficient of variation is 1 / sqrt(burstiness)."""
    offsets = list(itertools.islice(Arrivals(rate=20.0, burstiness=burstiness, seed=1).offsets(), 20_000))
    gaps = [after - before for before, after in itertools.pairwise([0.0, *offsets])]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert spread / mean == pytest.approx(variation, abs=0.08)
    assert offsets == list(itertools.islice(Arrivals(rate=20.0, burstiness=burstiness, seed=1).offsets(), 20_000))
