"""Commands on the operator's port: what they ask, what they print, how they fail."""

import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from chairlift.v1 import inference_pb2, ops_pb2, ops_pb2_grpc
from deploy.cli import main
from deploy.cli.errors import CommandError
from deploy.cli.guard_flags import parse_guard
from deploy.cli.knobs import knob_values, parse_assignments, revision_facts
from deploy.cli.terminal import Style
from deploy.cli.top_samples import ReplicaHistory
from deploy.cli.top_view import line, screen


def revision(number: int, **facts: Any) -> ops_pb2.ConfigRevision:
    config = ops_pb2.SchedulingConfig(
        max_num_seqs=8, watermark=0.01, policy=ops_pb2.SCHEDULING_POLICY_FAIR, enable_prefix_caching=True
    )
    config.tenants.append("acme: weight=2")
    fields: dict[str, Any] = {
        "origin": ops_pb2.CONFIG_ORIGIN_UPDATE,
        "actor": "ann",
        "time": Timestamp(seconds=1_800_000_000),
    }
    return ops_pb2.ConfigRevision(revision=number, config=config, **(fields | facts))


def load(output_tokens: int = 0, **facts: Any) -> ops_pb2.ReplicaLoad:
    return ops_pb2.ReplicaLoad(
        replica_id="replica-0",
        state=ops_pb2.REPLICA_STATE_READY,
        num_running=6,
        num_waiting=2,
        kv_blocks=ops_pb2.KvBlocks(total=100, used=40, free=60),
        totals=ops_pb2.LoadTotals(output_tokens=output_tokens, iterations=output_tokens // 2),
        config_revision=3,
        **facts,
    )


class Desk(ops_pb2_grpc.OpsServiceServicer):
    """A gateway's operator port that remembers what it was asked."""

    def __init__(self) -> None:
        self.target = ""
        self.asked: list[Any] = []
        self.refuses: tuple[grpc.StatusCode, str] | None = None
        self.failure: inference_pb2.Failure | None = None
        self.num_loads = 0

    def _replica(self, request: Any, context: Any, *history: ops_pb2.ConfigRevision) -> ops_pb2.ReplicaConfig:
        self.asked.append(request)
        if self.refuses is not None:
            code, reason = self.refuses
            status = status_pb2.Status(code=code.value[0], message="config.watermark: no")
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="chairlift"))
            context.abort_with_status(rpc_status.to_status(status))
        if self.failure is not None:
            return ops_pb2.ReplicaConfig(replica_id="replica-0", failure=self.failure)
        return ops_pb2.ReplicaConfig(
            replica_id="replica-0",
            current=revision(3, changed=FieldMask(paths=["policy"]), comment="faster"),
            history=history,
        )

    def GetConfig(self, request: Any, context: Any) -> ops_pb2.GetConfigResponse:
        history = [revision(2), revision(1, origin=ops_pb2.CONFIG_ORIGIN_START, actor="")]
        told = history if request.include_history else []
        return ops_pb2.GetConfigResponse(replicas=[self._replica(request, context, *told)])

    def UpdateConfig(self, request: Any, context: Any) -> ops_pb2.UpdateConfigResponse:
        return ops_pb2.UpdateConfigResponse(replicas=[self._replica(request, context)])

    def RollbackConfig(self, request: Any, context: Any) -> ops_pb2.RollbackConfigResponse:
        return ops_pb2.RollbackConfigResponse(replicas=[self._replica(request, context)])

    def Drain(self, request: Any, context: Any) -> ops_pb2.DrainResponse:
        self.asked.append(request)
        results = [ops_pb2.TargetResult(replica_id="replica-0", failure=self.failure)]
        return ops_pb2.DrainResponse(results=[*results, ops_pb2.TargetResult(gateway_id="gateway-0")])

    def Undrain(self, request: Any, context: Any) -> ops_pb2.UndrainResponse:
        self.asked.append(request)
        return ops_pb2.UndrainResponse(results=[ops_pb2.TargetResult(replica_id="replica-0")])

    def GetLoad(self, request: Any, context: Any) -> ops_pb2.GetLoadResponse:
        self.num_loads += 1
        replica = load()
        if self.num_loads > 1:
            replica.num_running = replica.num_waiting = 0
        return ops_pb2.GetLoadResponse(replicas=[replica], gateway=ops_pb2.GatewayLoad(gateway_id="gateway-0"))

    def _unused(self, request: Any, context: Any) -> Any:
        raise AssertionError("no command asks for it")

    GetServerInfo = ListRequests = InspectRequest = TerminateRequest = FlushPrefixCache = SetLogLevel = _unused

    def WatchLoad(self, request: Any, context: Any) -> Iterator[ops_pb2.WatchLoadResponse]:
        self.asked.append(request)
        gateway = ops_pb2.GatewayLoad(gateway_id="gateway-0", open_streams=6)
        for tokens in (0, 50, 100):
            yield ops_pb2.WatchLoadResponse(replicas=[load(tokens)], gateway=gateway)

    def WatchIterations(self, request: Any, context: Any) -> Iterator[ops_pb2.WatchIterationsResponse]:
        yield ops_pb2.WatchIterationsResponse(replica_id="replica-0", iterations=[iteration(1)], num_missed=2)


def iteration(step: int) -> ops_pb2.Iteration:
    return ops_pb2.Iteration(
        step=step,
        num_seqs=6,
        max_num_seqs=8,
        num_tokens=30,
        num_prefill_tokens=25,
        token_budget=64,
        num_waiting=2,
        boarded=[ops_pb2.SequenceRef(request_id="r1")],
        plan_ms=0.25,
        total_ms=12.5,
    )


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    servicer = Desk()
    server = grpc.server(ThreadPoolExecutor(8))
    ops_pb2_grpc.add_OpsServiceServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    monkeypatch.setenv("CHAIRLIFT_OPS_TARGET", servicer.target)
    server.start()
    yield servicer
    server.stop(None).wait()


def test_config_get_prints_what_config_set_takes(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "get"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("# replica-0: revision 3  update  2027-01-15T08:00:00Z  by ann  policy=fair  # faster")
    assert lines[:2] == ["max_num_seqs=8", "watermark=0.01"]
    config, names = parse_assignments(lines)
    assert (names, config) == (list(knob_values(config)), revision(3).config)
    assert main(["config", "get", "scheduler.policy"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["policy=fair"]
    assert main(["config", "get", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["replica"], told["revision"], told["config"]["policy"]) == ("replica-0", 3, "fair")


def test_config_set_sends_what_is_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["config", "set", "policy=slo", "max_num_seqs=default", "watermark=0.5", "enable_prefix_caching=false"]
    flags = ["--expect", "2", "--guard", "itl_p99_ms<=50@60", "--comment", "faster", "--replica", "replica-0"]
    assert main([*command, *flags]) == 0
    (request,) = desk.asked
    assert list(request.update_mask.paths) == ["policy", "max_num_seqs", "watermark", "enable_prefix_caching"]
    assert (request.config.policy, request.config.HasField("max_num_seqs")) == (ops_pb2.SCHEDULING_POLICY_SLO, False)
    assert (request.expected_revision, request.replica_id, request.comment) == (2, "replica-0", "faster")
    assert (request.guard.metric, request.guard.bound, request.guard.window.seconds) == (2, 50.0, 60)
    assert "replica-0: revision 3" in capsys.readouterr().out
    assert main(["config", "set", 'tenants=["acme: weight=3"]', "--dry-run", "--json"]) == 0
    assert (desk.asked[1].validate_only, list(desk.asked[1].config.tenants)) == (True, ["acme: weight=3"])
    assert json.loads(capsys.readouterr().out)[0]["revision"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["polcy=fair"], "did you mean policy?"),
        (["watermark=0.5", "scheduler.watermark=0.6"], "watermark is set already"),
        (["policy=random"], "expected fcfs or priority or fair or slo"),
        (["max_num_seqs=many"], "expected a whole number"),
        (["max_num_seqs=-1"], "expected a whole number"),
        (["watermark=much"], "expected a number"),
        (["enable_prefix_caching=1"], "expected true or false"),
        (["tenants=acme"], "expected a list of texts"),
        (["policy"], "expected KEY=VALUE"),
        (["policy=fair", "--guard", "latency<=5@5"], "METRIC one of ttft_p99_ms"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    desk: Desk, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "set", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert desk.asked == []


def test_a_guard_is_told_as_it_is_written() -> None:
    facts = revision_facts(revision(3, guard=parse_guard("itl_p99_ms<=50@60")))
    assert facts["guard"] == {"metric": "itl_p99_ms", "bound": 50.0, "window_s": 60.0}


def test_guards_are_numbers() -> None:
    for text in ("itl_p99_ms<=5..5@6", "itl_p99_ms<5@6", ""):
        with pytest.raises(CommandError):
            parse_guard(text)


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", 2),
        (grpc.StatusCode.ABORTED, "WRONG_REVISION", 1),
        (grpc.StatusCode.PERMISSION_DENIED, "METHOD_NOT_ALLOWED", 1),
    ],
)
def test_refusals_are_one_line(
    desk: Desk, code: grpc.StatusCode, reason: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.refuses = (code, reason)
    assert main(["config", "set", "watermark=0.5"]) == exit_code
    error = capsys.readouterr().err
    assert "config.watermark: no" in error
    assert error.count("\n") == 1


def test_a_replica_that_does_not_answer_fails_the_command(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.failure = inference_pb2.Failure(reason="NO_SCHEDULER", message="the scheduler does not answer")
    for command in (["config", "set", "watermark=0.5"], ["config", "get"], ["config", "history"], ["drain"]):
        assert main(command) == 1
        assert "NO_SCHEDULER" in capsys.readouterr().out


def test_nobody_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "get", "--ops-target", "127.0.0.1:1"]) == 1
    assert "no gateway answers at 127.0.0.1:1" in capsys.readouterr().err


def test_config_history_and_rollback(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [one.split("  ")[:2] for one in lines] == [
        ["replica-0: revision 3", "update"],
        ["replica-0: revision 2", "update"],
        ["replica-0: revision 1", "start"],
    ]
    assert main(["config", "history", "--json"]) == 0
    assert [one["revision"] for one in json.loads(capsys.readouterr().out)[0]["revisions"]] == [3, 2, 1]
    assert main(["config", "rollback", "1", "--expect", "3", "--comment", "worse"]) == 0
    request = desk.asked[-1]
    assert (request.revision, request.expected_revision, request.replica_id) == (1, 3, "all")
    assert main(["config", "rollback"]) == 0
    assert not desk.asked[-1].HasField("revision")


def test_drain_names_its_target_and_waits(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "--deadline", "1.5", "--wait", "--comment", "upgrade"]) == 0
    request = desk.asked[-1]
    assert (request.all, request.deadline.nanos, request.comment) == (True, 500_000_000, "upgrade")
    assert desk.num_loads == 2
    assert "gateway-0: admits no more" in capsys.readouterr().out
    assert main(["drain", "--replica", "replica-0", "--json"]) == 0
    assert (desk.asked[-1].replica_id, desk.asked[-1].HasField("deadline")) == ("replica-0", False)
    assert main(["drain", "--gateway", "gateway-0", "--undo"]) == 0
    assert desk.asked[-1].gateway_id == "gateway-0"
    assert main(["drain", "--undo", "--wait"]) == 2


def test_top_once_and_in_lines(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 0
    assert "replica-0 ready  running 6  waiting 2" in capsys.readouterr().out

    assert main(["top", "--json", "--interval", "0.5", "--count", "3"]) == 0
    assert desk.asked[-1].interval.nanos == 500_000_000
    told = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert [one["output_rate"] is None for one in told] == [True, False, False]
    assert told[1]["kv_share"] == 0.4
    assert main(["top", "--interval", "0"]) == 2


def test_top_on_a_terminal_has_its_own_screen_and_leaves_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    screen_of = Terminal()
    monkeypatch.setattr(sys, "stdout", screen_of)

    assert main(["top", "--count", "3"]) == 0
    text = screen_of.getvalue()
    assert text.startswith("\x1b[?1049h\x1b[?25l")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert text.count("\x1b[H\x1b[J") == 3
    assert "gateway-0  6 streams" in text


def test_rates_come_from_two_loads_of_one_life() -> None:
    history = ReplicaHistory()
    assert history.sample(load(100), 1.0).output_rate is None
    assert history.sample(load(160), 3.0).output_rate == 30.0
    # A scheduler that was started anew counts from 0.
    assert history.sample(load(5, scheduler_epoch=9), 4.0).output_rate is None


@pytest.mark.parametrize("is_plain", [True, False])
def test_the_view_fits_its_width(is_plain: bool) -> None:
    history = ReplicaHistory()
    history.add_iterations([iteration(step) for step in range(1, 40)], 3)
    sample = history.sample(load(10), 1.0)
    lines = screen(sample, list(history.beats), history.num_missed, 60, Style(io.StringIO()), is_plain=is_plain)
    assert max(map(len, lines)) <= 60
    text = "\n".join(lines)
    assert "6 of 8 (75%)" in text
    assert "40 of 100 (40%)" in text
    assert "3 left out" in text
    assert ("▆" in text, "#" in text) == (not is_plain, is_plain)
    assert text.isascii() == is_plain
    wide = screen(sample, list(history.beats), 0, 99, Style(io.StringIO()), is_plain=is_plain)
    assert wide[-1].split() == ["39", "6", "5", "25", "64", "2", "1", "0", "0", "0.25", "12.5"]
    assert "kv 40%" in line(sample)


def test_a_view_without_iterations_is_no_fault() -> None:
    sample = ReplicaHistory().sample(ops_pb2.ReplicaLoad(), 1.0)
    lines = screen(sample, [], 0, 80, Style(io.StringIO()), is_plain=True)
    assert lines[0].startswith("?  unspecified")


def test_explain_says_where_the_time_went(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.client import Client, Explanation, RequestState

    told = Explanation(
        request_id="r1",
        state=RequestState.RUNNING,
        total_ms=1500.0,
        wait_ms=30.5,
        waits={"seats": 10.0, "kv_blocks": 20.5},
        iterations=12,
        prefill_chunks=2,
        preemptions=1,
        swaps=0,
        prompt_tokens=40,
        cached_tokens=16,
        output_tokens=11,
    )
    monkeypatch.setattr(Client, "explain", lambda _self, request_id: told if request_id == "r1" else None)
    assert main(["explain", "r1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [one.split()[0] for one in lines[:4]] == ["request", "state", "total", "waited"]
    assert lines[4].split() == ["for", "kv_blocks", "20.5", "ms"]
    assert "40 prompt (16 cached), 11 output" in "\n".join(lines)
    assert main(["explain", "r1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waits"] == {"seats": 10.0, "kv_blocks": 20.5}
