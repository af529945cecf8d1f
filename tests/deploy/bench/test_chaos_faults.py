"""The schedule of faults: seeded, complete, within its time; what of a run is told, and what makes it clean."""

from pathlib import Path

import msgspec
import pytest

from chairlift.client import Choice, Completion, FinishReason, StreamCorruptError, UnavailableError
from deploy.bench.chaos.document import write_document
from deploy.bench.chaos.faults import LEAD_S, FaultKind, plan_faults
from deploy.bench.chaos.inject import Injected
from deploy.bench.chaos.load import Stream
from deploy.bench.chaos.report import Remains, detection_s, make_report, render_table
from deploy.bench.chaos.verdict import Losses, compare_streams, recovery_s
from deploy.bench.chaos.watch import MemorySample, Noticed
from deploy.bench.chaos.workload import make_catalogue, with_stop_strings


@pytest.mark.parametrize("seconds", [30.0, 120.0, 1200.0])
def test_a_schedule_has_every_kind_and_can_be_repeated(seconds: float) -> None:
    faults = plan_faults(7, seconds, 2, 2)
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert faults == plan_faults(7, seconds, 2, 2)
    assert faults != plan_faults(8, seconds, 2, 2)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert faults[0].at_s >= LEAD_S
    assert faults[-1].at_s < seconds
    targets = {fault.target.split()[0] for fault in faults if fault.kind is FaultKind.DRAIN}
    if seconds > 1000:
        assert targets == {"gateway", "scheduler", "worker"}


def test_the_load_has_all_that_must_survive_a_break() -> None:
    """Each by itself, all of it in one request, and stop strings several tokens long out of what it makes."""
    jobs = make_catalogue(5, 9)
    asked = [set(job.options) for job in jobs]
    wanted = {"n", "seed", "repetition_penalty", "frequency_penalty", "logprobs"}
    assert any(wanted <= options for options in asked)
    assert all("seed" in options and "token_ids" in options for options in asked)
    stopped = with_stop_strings(jobs, [completion((1,), "a text of some length, long enough to be cut")] * len(jobs))
    assert {"n" in job.options for job in stopped} == {True, False}
    assert all(len(str(job.options["stop"])) > 8 for job in stopped)


def completion(ids: tuple[int, ...], text: str = "t", reason: FinishReason = FinishReason.LENGTH) -> Completion:
    choice = Choice(index=0, text=text, num_tokens=len(ids), token_ids=ids, finish_reason=reason)
    return Completion(request_id="r", model="m", prompt_tokens=1, choices=(choice,))


WANTED = {"job": completion((1, 2, 3))}


@pytest.mark.parametrize(
    ("found", "lost", "doubled"),
    [
        (completion((1, 2, 3)), 0, 0),
        (completion((1, 2)), 1, 0),
        (completion((1, 9, 3)), 1, 0),
        (completion((1, 2, 3, 3)), 0, 1),
        (completion((1, 2, 3), text="other"), 0, 0),
        (completion((1, 2, 3), reason=FinishReason.EOS), 0, 0),
        (None, 3, 0),
    ],
)
def test_every_difference_loses_the_stream(found: Completion | None, lost: int, doubled: int) -> None:
    stream = Stream("job", 0.0, accepted=1.0, ended=2.0, completion=found)
    losses = compare_streams([stream], WANTED)
    assert (losses.tokens_lost, losses.tokens_doubled) == (lost, doubled)
    assert losses.streams_lost == (found != WANTED["job"]) == len(losses.details)


def test_what_the_client_library_finds_counts() -> None:
    twice = StreamCorruptError("choice 0: output came twice: offset 1 after 2 tokens")
    streams = [
        Stream("job", 0.0, accepted=1.0, ended=2.0, completion=WANTED["job"], error=twice),
        Stream("job", 0.0, ended=2.0, error=UnavailableError("no scheduler")),
    ]
    losses = compare_streams(streams, WANTED)
    assert (losses.streams_lost, losses.tokens_doubled) == (1, 1), "a refusal before Accepted is no loss"


def test_recovery_is_the_longest_wait_of_those_that_were_open() -> None:
    streams = [
        Stream("a", 0.0, accepted=1.0, progress=[2.0, 14.0], ended=15.0),
        Stream("b", 0.0, accepted=1.0, progress=[9.0, 11.0], ended=12.0),
        Stream("c", 0.0, accepted=1.0, progress=[9.0], ended=9.5),
        Stream("d", 11.0, accepted=12.0, progress=[90.0], ended=95.0),
    ]
    assert recovery_s(streams, 10.0, 20.0) == 4.0
    assert recovery_s(streams, 9.6, 20.0) == pytest.approx(4.4)


def test_a_token_that_was_under_way_at_the_fault_is_no_recovery() -> None:
    """The pause comes after it; one that only begins after the next fault is that one's."""
    streams = [Stream("a", 0.0, accepted=1.0, progress=[9.9, 10.1, 13.0, 13.1, 30.0], ended=30.0)]
    assert recovery_s(streams, 10.0, 12.0) == pytest.approx(2.9)
    assert recovery_s(streams, 12.0, 13.05) == pytest.approx(1.0)


def test_what_a_supervisor_notices_of_another_process_is_another_fault() -> None:
    (kill,) = [one for one in plan_faults(1, 30.0, 1, 1) if one.kind is FaultKind.WORKER_KILL]
    assert kill.target == "worker 0"
    assert detection_s(kill, 100.0, [Noticed(100.5, "restarting", "gateway 0")]) is None
    assert detection_s(kill, 100.0, [Noticed(100.5, "restarting", "worker 0")], 0.3) is None
    assert detection_s(kill, 100.0, [Noticed(100.5, "restarting", "worker 0")]) == pytest.approx(0.5)


def test_a_report_is_clean_only_with_nothing_lost_and_every_kind_injected() -> None:
    faults = plan_faults(1, 60.0, 2, 2)
    injected = [Injected(fault, fault.at_s, 1000.0 + fault.at_s) for fault in faults]
    kill = next(one for one in injected if one.fault.kind is FaultKind.WORKER_KILL)
    noticed = [
        Noticed(kill.wall + 0.5, "worker_lost", "scheduler"),
        Noticed(kill.wall + 0.2, "restarting", kill.fault.target),
    ]
    assert detection_s(kill.fault, kill.wall, noticed) == pytest.approx(0.2)
    cut = msgspec.structs.replace(kill.fault, kind=FaultKind.LINK_PARTITION, duration_s=1.5)
    assert detection_s(cut, 0.0, [Noticed(9.0, "worker_lost", "scheduler")]) is None
    stream = Stream("job", 0.0, accepted=1.0, progress=[2.0], ended=2.0, completion=WANTED["job"])
    report = make_report(
        streams=[stream],
        losses=Losses(),
        injected=injected,
        noticed=noticed,
        remains=Remains(blocks=0, processes=0, sockets=0),
        memory=[],
        seconds=60.0,
        seed=1,
        conditions=["links made of string"],
    )
    assert report.is_clean
    assert (report.streams, report.tokens, report.refused) == (1, 3, 0)
    assert "worker_kill" in render_table(report)
    assert "with: links made of string\n" in render_table(report)
    fixed = {"streams", "streams_lost", "tokens_lost", "tokens_doubled", "blocks_leaked", "processes_left", "faults"}
    assert fixed | {"recovery_s"} <= set(msgspec.to_builtins(report))
    for field in ("streams_lost", "tokens_lost", "tokens_doubled", "blocks_leaked", "processes_left", "sockets_left"):
        assert not msgspec.structs.replace(report, **{field: 1}).is_clean
    assert not msgspec.structs.replace(report, problems=1).is_clean
    assert not msgspec.structs.replace(report, faults={**report.faults, "drain": 0}).is_clean


def test_a_report_becomes_a_document_with_plots(tmp_path: Path) -> None:
    memory = [MemorySample(float(at), {"worker 0": at << 20, "gateway 0": 5 << 20}) for at in range(1, 50)]
    report = make_report(
        streams=[], losses=Losses(), injected=[], noticed=[], remains=Remains(blocks=0, processes=0, sockets=0),
        memory=memory, seconds=60.0, seed=1,
    )  # fmt: skip
    write_document(report, tmp_path / "chaos.md", "a machine")
    text = (tmp_path / "chaos.md").read_text()
    assert "--seconds 60 --seed 1" in text
    for plot in ("chaos-workers.svg", "chaos-gateways-schedulers.svg"):
        assert plot in text
        assert 'class="line"' in (tmp_path / plot).read_text()
