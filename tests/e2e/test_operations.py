"""Operating a running server: knobs change under streams, revisions and guards, a watcher that never reads."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from chairlift.client import AsyncClient, Client, Completion
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


def change(ops: ops_pb2_grpc.OpsServiceStub, **knobs: Any) -> ops_pb2.ConfigRevision:
    """Changes knobs of the only replica; returns the revision in force then."""
    request = ops_pb2.UpdateConfigRequest(
        config=ops_pb2.SchedulingConfig(**knobs), update_mask=FieldMask(paths=list(knobs)), replica_id="all"
    )
    return ops.UpdateConfig(request, timeout=30).replicas[0].current


def iterations(ops: ops_pb2_grpc.OpsServiceStub, told: list[ops_pb2.Iteration]) -> Any:
    """Follows the batch from now on, in a thread of its own."""
    watch = ops.WatchIterations(ops_pb2.WatchIterationsRequest(include_riders=True))

    def follow() -> None:
        try:
            for response in watch:
                told.extend(response.iterations)
        except grpc.RpcError:
            return

    threading.Thread(target=follow, daemon=True).start()
    return watch


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        time.sleep(0.02)


async def test_seats_are_drained_between_two_iterations_while_streams_run(stack: Any, ops: Any) -> None:
    """Nobody who rides is put out, and who comes later waits until there are fewer."""
    told: list[ops_pb2.Iteration] = []
    watch = iterations(ops, told)
    lengths = [90, 90, 90, 90, 180, 180]
    async with AsyncClient(stack.listen) as client:

        async def one(length: int) -> Completion:
            return await client.generate("Once upon a time", max_tokens=length, temperature=0, ignore_eos=True)

        riders = [asyncio.create_task(one(length)) for length in lengths]
        await asyncio.to_thread(until, lambda: stack.load().num_running == 6)
        revision = change(ops, max_num_seqs=2).revision
        late = asyncio.create_task(one(4))
        completions = await asyncio.gather(*riders, late)
    assert [one.usage.output_tokens for one in completions] == [*lengths, 4]
    assert all(choice.preemptions == 0 for one in completions for choice in one.choices)
    until(lambda: any(one.config_revision == revision and one.num_seqs == 1 for one in told))
    watch.cancel()
    before = [one for one in told if one.config_revision < revision]
    after = [one for one in told if one.config_revision == revision]
    assert {one.max_num_seqs for one in before} == {32}
    assert {one.max_num_seqs for one in after} == {2}
    # Seats are given back as riders end, and none beyond the two is taken again.
    sizes = [one.num_seqs for one in after]
    few = sizes.index(2)
    assert sizes[0] > 2
    assert sizes[:few] == sorted(sizes[:few], reverse=True)
    assert max(sizes[few:]) == 2
    assert all(sum(rider.num_tokens for rider in one.riders) == one.num_tokens for one in told)


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
    assert "ttft_p99_ms" in guarded.comment
    lines = [json.loads(one) for one in stack.log().splitlines() if '"config_revised"' in one]
    assert next(one for one in lines if one["revision"] == guarded.revision)["level"] == "warning"
    audited = [json.loads(one) for one in stack.log().splitlines() if '"audit"' in one]
    assert any(one["comment"] == "one at a time" and one["who"] == "anybody" and one["timestamp"] for one in audited)


def test_a_watcher_that_never_reads_disturbs_nobody(stack: Any, ops: Any) -> None:
    frozen = ops.WatchIterations(ops_pb2.WatchIterationsRequest(include_riders=True))
    with Client(stack.listen) as client:
        completion = client.generate("Once upon a time", max_tokens=150, temperature=0, ignore_eos=True)
    assert completion.usage.output_tokens == 150
    assert stack.load().num_gateways == 2
    frozen.cancel()


def test_the_operators_views_agree(stack: Any, ops: Any) -> None:
    with Client(stack.listen) as client:
        stream = client.stream(
            "Once upon a time", max_tokens=200, temperature=0, ignore_eos=True, request_id="seen-by-operators"
        )
        next(iter(stream))
        listed = ops.ListRequests(ops_pb2.ListRequestsRequest(), timeout=30).requests
        (row,) = [one for one in listed if one.request_id == "seen-by-operators"]
        inspect = ops_pb2.InspectRequestRequest(tenant=row.tenant, request_id=row.request_id)
        inspected = ops.InspectRequest(inspect, timeout=30)
        assert inspected.choices[0].known_tokens > inspected.summary.prompt_tokens == row.prompt_tokens
        assert inspected.choices[0].num_blocks > 0
        top = chairlift(stack, "top", "--once", "--json")
        assert json.loads(top.stdout)["num_running"] >= 1, top.stderr
        command = [sys.executable, "-m", "deploy.cli", "explain", row.request_id, "--target", stack.listen]
        explained = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=True)
        assert "iterations" in explained.stdout
        terminate = ops_pb2.TerminateRequestRequest(tenant=row.tenant, request_id=row.request_id, comment="enough")
        assert ops.TerminateRequest(terminate, timeout=30).outcome
        stream.close()
    info = ops.GetServerInfo(ops_pb2.GetServerInfoRequest(), timeout=30)
    (replica,) = info.replicas
    processes = [info.gateway, replica.scheduler, *replica.workers]
    assert len({one.pid for one in processes}) == len({one.epoch for one in processes}) == 3
    assert len({one.version for one in processes}) == 1
    assert all(one.start_time.seconds > 1_700_000_000 for one in processes)
    flushed = ops.FlushPrefixCache(ops_pb2.FlushPrefixCacheRequest(replica_id="all"), timeout=30)
    assert not flushed.results[0].HasField("failure")
