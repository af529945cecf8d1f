"""Operating a running server: knobs that change, revisions that are expected, guards that take a change back."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from chairlift.client import Client
from chairlift.v1 import ops_pb2, ops_pb2_grpc

_WAIT_S = 60.0


def chairlift(stack: Any, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "deploy.cli", *arguments, "--ops-target", stack.ops]
    return subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)


@pytest.fixture
def ops(stack: Any) -> Iterator[ops_pb2_grpc.OpsServiceStub]:
    """The operator's port; the knobs of before come back afterwards."""
    with grpc.insecure_channel(stack.ops) as channel:
        stub = ops_pb2_grpc.OpsServiceStub(channel)
        before = stub.GetConfig(ops_pb2.GetConfigRequest(), timeout=30).replicas[0].current.revision
        yield stub
        stub.RollbackConfig(ops_pb2.RollbackConfigRequest(replica_id="all", revision=before), timeout=30)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        time.sleep(0.02)


def test_a_change_by_who_has_not_seen_the_last_is_aborted(stack: Any, ops: Any) -> None:
    current = ops.GetConfig(ops_pb2.GetConfigRequest(), timeout=30).replicas[0].current.revision
    request = ops_pb2.UpdateConfigRequest(
        config=ops_pb2.SchedulingConfig(policy=ops_pb2.SCHEDULING_POLICY_FAIR),
        update_mask=FieldMask(paths=["policy"]),
        expected_revision=current + 1,
        replica_id="replica-0",
    )
    with pytest.raises(grpc.RpcError) as refused:
        ops.UpdateConfig(request, timeout=30)
    assert refused.value.code() is grpc.StatusCode.ABORTED
    done = chairlift(stack, "config", "set", "policy=fair", "--expect", str(current + 1))
    assert (done.returncode, "is in force" in done.stderr) == (1, True)
    done = chairlift(stack, "config", "set", "policy=fair", "--expect", str(current))
    assert done.returncode == 0, done.stderr
    told = chairlift(stack, "config", "get", "policy").stdout.splitlines()
    assert told[1:] == ["policy=fair"]
    for bad, words in (("max_num_seqs=1000", "32 at most"), ("watermark=1.5", "watermark")):
        done = chairlift(stack, "config", "set", bad)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_guard_takes_a_bad_change_back(stack: Any, ops: Any) -> None:
    update = ops_pb2.UpdateConfigRequest(
        config=ops_pb2.SchedulingConfig(max_num_seqs=1),
        update_mask=FieldMask(paths=["max_num_seqs"]),
        replica_id="all",
        guard=ops_pb2.Guard(metric=ops_pb2.GUARD_METRIC_TTFT_P99_MS, bound=0.001, window=Duration(seconds=2)),
        comment="one at a time",
    )
    changed = ops.UpdateConfig(update, timeout=30).replicas[0].current
    assert changed.HasField("guard")
    with Client(stack.listen) as client:
        client.generate("Hello", max_tokens=2, temperature=0)

    def history() -> list[ops_pb2.ConfigRevision]:
        replica = ops.GetConfig(ops_pb2.GetConfigRequest(include_history=True), timeout=30).replicas[0]
        return [replica.current, *replica.history]

    until(lambda: history()[0].revision == changed.revision + 1)
    guarded, bad = history()[:2]
    assert (guarded.origin, guarded.config.max_num_seqs) == (ops_pb2.CONFIG_ORIGIN_GUARD, 32)
    assert (bad.comment, bad.actor) == ("one at a time", "anybody")
    assert "ttft_p99_ms passed" in guarded.comment
    lines = [json.loads(one) for one in stack.log().splitlines() if '"config_revised"' in one]
    assert next(one for one in lines if one["revision"] == guarded.revision)["level"] == "warning"
    audited = [json.loads(one) for one in stack.log().splitlines() if '"audit"' in one]
    assert any(one["comment"] == "one at a time" and one["who"] == "anybody" and one["timestamp"] for one in audited)
