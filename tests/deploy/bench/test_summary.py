"""Figures of hand-made records, each worked out by hand."""

import pytest

from deploy.bench.figures.slo import ObjectiveError, Objectives, is_good, parse_objectives
from deploy.bench.figures.summary import summarize_run
from deploy.bench.load.record import Outcome, RequestRecord

MS = 1_000_000


def record(
    number: int,
    deltas: list[tuple[int, int]],
    *,
    intended: int = 0,
    sent: int = 0,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
) -> RequestRecord:
    """`deltas`: (ms, tokens)."""
    one = RequestRecord(
        number=number,
        session=number,
        turn=0,
        wanted_tokens=4,
        intended_ns=intended * MS,
        sent_ns=sent * MS,
        prompt_tokens=10,
        outcome=outcome,
        reason=reason,
    )
    for at_ms, num_tokens in deltas:
        one.take_delta(at_ms * MS, num_tokens)
    one.ended_ns = (deltas[-1][0] if deltas else sent) * MS
    return one


def test_latencies_count_from_the_intended_sending() -> None:
    one = record(0, [(150, 1), (170, 1), (200, 1)], intended=100, sent=140)
    assert one.ttft_ms == 50
    assert one.e2el_ms == 100
    assert one.tpot_ms == 25
    assert one.inter_token_ms() == [20, 30]


def test_tokens_of_one_delta_share_its_gap_and_the_first_delta_has_none() -> None:
    one = record(0, [(100, 3), (140, 4), (150, 1)])
    assert one.inter_token_ms() == [10, 10, 10, 10, 10]
    assert one.inter_chunk_ms() == [40, 10]
    assert one.output_tokens == 8


def test_every_outcome_is_counted_and_only_good_ends_are_measured() -> None:
    summary = summarize_run(
        [
            record(0, [(100, 1), (200, 1)]),
            record(1, [(400, 1), (1000, 1)]),
            record(2, [], sent=5, outcome=Outcome.REFUSED, reason="RESOURCE_EXHAUSTED/QUEUE_FULL"),
            record(3, [(50, 1)], outcome=Outcome.TIMED_OUT, reason="DEADLINE_EXCEEDED"),
            record(4, [(60, 2)], outcome=Outcome.ABANDONED),
        ],
        Objectives(ttft_ms=150),
    )
    assert summary.duration == 1.0
    assert (summary.completed, summary.failed) == (2, 2)
    assert summary.error_rate == 0.5
    assert summary.timeout_rate == 0.25
    assert summary.outcomes == {"ok": 2, "refused": 1, "timed_out": 1, "abandoned": 1}
    assert summary.reasons == {"RESOURCE_EXHAUSTED/QUEUE_FULL": 1, "DEADLINE_EXCEEDED": 1}
    assert summary.total_output_tokens == 7
    assert summary.output_throughput == 7.0
    assert summary.request_throughput == 2.0
    assert summary.request_goodput == 1.0
    assert summary.max_output_tokens_per_s == 6
    assert summary.latencies["ttft"].mean == 250
    assert summary.latencies["ttft"].count == 2


def test_names_are_those_of_vllms_benchmark() -> None:
    fields = summarize_run([record(0, [(100, 1), (200, 1)]), record(1, [(100, 1)])], Objectives()).to_fields()
    assert {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
        "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "p99.9_itl_ms",
        "mean_tpot_ms", "p95_e2el_ms",
    } <= fields.keys()  # fmt: skip


def test_no_request_gives_no_latency_and_no_division_by_zero() -> None:
    summary = summarize_run([], Objectives(ttft_ms=1))
    assert summary.latencies == {}
    assert summary.output_throughput == 0.0


def test_a_request_is_good_when_it_meets_every_objective() -> None:
    one = record(0, [(100, 1), *((100 + 10 * step, 1) for step in range(1, 199)), (2480, 1)])
    assert is_good(one, Objectives(ttft_ms=100, itl_ms=10))  # one late gap of 199 is forgiven
    assert not is_good(one, Objectives(ttft_ms=99))
    assert not is_good(one, Objectives(e2el_ms=2000))
    assert not is_good(one, Objectives(itl_ms=9))
    assert not is_good(record(0, [(1, 1)], outcome=Outcome.SHORT), Objectives(ttft_ms=100))


def test_objectives_are_read_as_vllm_writes_them() -> None:
    assert parse_objectives(["ttft:1000", "itl:100.5"]) == Objectives(ttft_ms=1000, itl_ms=100.5)
    for bad in ("ttft", "ttft:", "ttft:-1", "wait:5", "ttft:nan"):
        with pytest.raises(ObjectiveError, match="expected ttft:MS"):
            parse_objectives([bad])
