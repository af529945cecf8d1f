"""The operator's service over a real server: configuration, iterations, lists, processes, levels of logs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from chairlift.ipc import front, operator
from chairlift.ipc.common import FinishReason, ProcessFacts, Reason, WaitReason
from chairlift.ipc.operator import MAX_ITERATIONS_PER_SECOND
from chairlift.runtime.telemetry import log_level, set_log_level
from chairlift.runtime.token_hash import hash_token
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import ops_pb2
from gateway.link.iterations import MAX_BUFFERED, MAX_BUFFERED_NAMES, Watcher

KNOBS = operator.SchedulingKnobs(
    *(8, 256, 16, 0, 0.25, 10, 100, True, False, "static", "fair", "recompute", 4, 50.0, 1000.0),
    ttft_slo_ms=20.0,
    tenants=("ann: weight=2",),
)
REVISION = operator.ConfigRevision(2, KNOBS, 10**9, 2, ("policy",), "ann", "why", operator.Guard(2, 50_000_000, 10**10))
FIRST = operator.ConfigRevision(1, KNOBS, 10**10, 1)
ROW = operator.RequestRow(3, "ann", "r1", "running", 2, 1, 5, 1, 7, 9_000_000, 4_000_000, 1, None, 10**9, True, 10**7)


def config_reply(query: int, *history: operator.ConfigRevision) -> operator.ConfigReply:
    return operator.ConfigReply(query, 2, KNOBS, 10**9, REVISION, history)


@asynccontextmanager
async def two_replicas(start_rig: Callable[..., Any], settings: Any, tmp_path: Any) -> AsyncIterator[tuple[Any, Any]]:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    endpoints = (f"ipc://{run}/gateway.sock", f"ipc://{run}/second.sock")
    async with start_rig(replicas=endpoints) as rig:
        other = type(rig.scheduler)(endpoints[1], settings.ipc, rig.scheduler.model, epoch=70)
        other.replica_id = "replica-1"
        await other.start()
        await other.wait_for_gateway()
        await rig.until(lambda: all(link.is_attached for link in rig.service._replicas.links))
        yield rig, other
        await other.stop()


# ---- configuration ----


async def test_the_configuration_in_force_is_told_in_the_settings_units(rig: Any) -> None:
    asked = asyncio.ensure_future(rig.ops.GetConfig(ops_pb2.GetConfigRequest(include_history=True)))
    query = await rig.scheduler.next(operator.ConfigQuery)
    assert query.include_history
    rig.scheduler.send(config_reply(query.query, FIRST))
    (replica,) = (await asked).replicas
    current, config = replica.current, replica.current.config
    assert (replica.replica_id, current.revision, current.actor, current.comment) == ("replica-0", 2, "ann", "why")
    assert (config.max_num_seqs, config.watermark, config.enable_prefix_caching) == (8, 0.25, False)
    assert (config.batching, config.policy) == (ops_pb2.BATCHING_MODE_STATIC, ops_pb2.SCHEDULING_POLICY_FAIR)
    assert (config.ttft_slo_ms, config.itl_target_ms, list(config.tenants)) == (20.0, 0.0, ["ann: weight=2"])
    assert list(current.changed.paths) == ["policy"]
    assert (current.guard.metric, current.guard.bound, current.guard.window.seconds) == (2, 50.0, 10)
    assert 0.5 < time.time() - current.time.seconds < 60
    assert [(one.revision, one.origin) for one in replica.history] == [(1, ops_pb2.CONFIG_ORIGIN_START)]


async def test_an_update_names_knobs_as_the_settings_do(rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = ops_pb2.SchedulingConfig(
        policy=ops_pb2.SCHEDULING_POLICY_SLO,
        itl_target_ms=0.0,
        watermark=0.5,
        tenants=["bob: weight=3"],
        max_num_queued_reqs=7,
    )
    names = ["policy", "itl_target_ms", "watermark", "max_num_seqs", "tenants"]
    call = rig.ops.UpdateConfig(
        ops_pb2.UpdateConfigRequest(
            config=config,
            update_mask=FieldMask(paths=names),
            expected_revision=1,
            replica_id="replica-0",
            guard=ops_pb2.Guard(metric=ops_pb2.GUARD_METRIC_ITL_P99_MS, bound=50, window=Duration(seconds=10)),
            comment="faster",
        )
    )
    change = await rig.scheduler.next(operator.ConfigChange)
    assert change.changes == (
        *(("policy", "slo"), ("itl_target_ms", None), ("watermark", 0.5), ("max_num_seqs", None)),
        ("tenants", ("bob: weight=3",)),
    )
    assert (change.expected_revision, change.guard) == (1, operator.Guard(2, 50_000_000, 10**10))
    assert (change.comment, change.actor, change.validate_only) == ("faster", "anybody", False)
    rig.scheduler.send(config_reply(change.query))
    (replica,) = (await call).replicas
    assert (replica.current.revision, replica.HasField("failure")) == (2, False)
    lines = [line for line in "".join(capsys.readouterr()).splitlines() if "audit" in line]
    assert len(lines) == 1
    for word in ("UpdateConfig", "anybody", "faster", "revision 2", "replica-0", "watermark"):
        assert word in lines[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"update_mask": FieldMask()}, "update_mask"),
        ({"update_mask": FieldMask(paths=["watermark", "no_such"])}, "update_mask.paths[1]"),
        ({"update_mask": FieldMask(paths=["watermark"])}, "config.watermark"),
        ({"config": ops_pb2.SchedulingConfig(watermark=float("nan"))}, "config.watermark"),
        (
            {
                "config": ops_pb2.SchedulingConfig(policy=ops_pb2.SCHEDULING_POLICY_UNSPECIFIED),
                "update_mask": FieldMask(paths=["policy"]),
            },
            "config.policy",
        ),
        (
            {
                "guard": ops_pb2.Guard(
                    metric=ops_pb2.GUARD_METRIC_ITL_P99_MS, bound=float("inf"), window=Duration(seconds=1)
                )
            },
            "guard.bound",
        ),
        (
            {"guard": ops_pb2.Guard(metric=ops_pb2.GUARD_METRIC_ERROR_RATIO, bound=1.01, window=Duration(seconds=1))},
            "guard.bound",
        ),
        ({"guard": ops_pb2.Guard(metric=ops_pb2.GUARD_METRIC_ITL_P99_MS, bound=1)}, "guard.window"),
        ({"guard": ops_pb2.Guard(bound=1, window=Duration(seconds=1))}, "guard.metric"),
        ({"comment": "x" * 501}, "comment"),
        ({"replica_id": ""}, "replica_id"),
    ],
)
async def test_a_bad_update_is_refused_by_field(rig: Any, changes: dict[str, Any], field: str) -> None:
    mask = FieldMask(paths=["watermark"])
    config = ops_pb2.SchedulingConfig(watermark=0.5)
    if field == "config.watermark" and "config" not in changes:
        config = ops_pb2.SchedulingConfig()
    fields: dict[str, Any] = {"config": config, "update_mask": mask, "replica_id": "all"}
    request = ops_pb2.UpdateConfigRequest(**(fields | changes))
    error = await rig.caller.error(rig.ops.UpdateConfig(request))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
    assert rig.scheduler.heard(operator.ConfigChange) == []


@pytest.mark.parametrize(
    ("reason", "code", "fields"),
    [
        (Reason.WRONG_REVISION, grpc.StatusCode.ABORTED, []),
        (Reason.INVALID_REQUEST, grpc.StatusCode.INVALID_ARGUMENT, ["config.watermark"]),
    ],
)
async def test_the_schedulers_refusal_is_a_status(
    rig: Any, reason: str, code: grpc.StatusCode, fields: list[str]
) -> None:
    request = ops_pb2.UpdateConfigRequest(
        config=ops_pb2.SchedulingConfig(watermark=2.0), update_mask=FieldMask(paths=["watermark"]), replica_id="all"
    )
    asked = asyncio.ensure_future(rig.caller.error(rig.ops.UpdateConfig(request)))
    change = await rig.scheduler.next(operator.ConfigChange)
    rig.scheduler.send(front.QueryFailed(change.query, reason, "no", "watermark", (("watermark", "1"),)))
    error = await asked
    assert (error.code, error.info.reason, error.fields) == (code, reason, fields)
    assert dict(error.info.metadata) == {"watermark": "1"}


async def test_a_rollback_reaches_the_replica(rig: Any) -> None:
    call = rig.ops.RollbackConfig(
        ops_pb2.RollbackConfigRequest(replica_id="replica-0", revision=1, expected_revision=3, comment="worse")
    )
    rollback = await rig.scheduler.next(operator.ConfigRollback)
    assert (rollback.revision, rollback.expected_revision, rollback.comment) == (1, 3, "worse")
    rig.scheduler.send(config_reply(rollback.query))
    assert (await call).replicas[0].current.revision == 2
    asked = asyncio.ensure_future(
        rig.caller.error(rig.ops.RollbackConfig(ops_pb2.RollbackConfigRequest(replica_id="all")))
    )
    rollback = await rig.scheduler.next(operator.ConfigRollback)
    assert rollback.revision is None
    rig.scheduler.send(front.QueryFailed(rollback.query, Reason.INVALID_REQUEST, "no such revision is known"))
    assert (await asked).fields == ["revision"]


async def test_each_replica_is_told_for_itself(start_rig: Any, settings: Any, tmp_path: Any) -> None:
    """One changes, one refuses: the call is OK and says so of each."""
    async with two_replicas(start_rig, settings, tmp_path) as (rig, other):
        call = rig.ops.UpdateConfig(
            ops_pb2.UpdateConfigRequest(
                config=ops_pb2.SchedulingConfig(watermark=0.5),
                update_mask=FieldMask(paths=["watermark"]),
                replica_id="all",
            )
        )
        change = await rig.scheduler.next(operator.ConfigChange)
        rig.scheduler.send(config_reply(change.query))
        change = await other.next(operator.ConfigChange)
        other.send(front.QueryFailed(change.query, Reason.WRONG_REVISION, "revision 5 is in force, not 1"))
        told = {one.replica_id: one for one in (await call).replicas}
        assert told["replica-0"].current.revision == 2
        assert told["replica-1"].failure.reason == "WRONG_REVISION"


async def test_a_silent_replica_is_told_and_nobody_hangs(start_rig: Any, settings: Any) -> None:
    ipc = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=0.5)
    async with start_rig(ipc=ipc) as rig:
        rig.scheduler.freeze()
        configs = await rig.ops.GetConfig(ops_pb2.GetConfigRequest())
        assert configs.replicas[0].failure.reason == "NO_SCHEDULER"
        assert configs.replicas[0].failure.retryable
        for call in (
            rig.ops.ListRequests(ops_pb2.ListRequestsRequest()),
            rig.ops.InspectRequest(ops_pb2.InspectRequestRequest(tenant="t", request_id="r")),
        ):
            assert (await rig.caller.error(call)).code is grpc.StatusCode.UNAVAILABLE
        info = await rig.ops.GetServerInfo(ops_pb2.GetServerInfoRequest())
        assert info.replicas[0].scheduler.epoch == 7


# ---- processes ----


async def test_server_info_names_the_processes(rig: Any) -> None:
    asked = asyncio.ensure_future(rig.ops.GetServerInfo(ops_pb2.GetServerInfoRequest()))
    query = await rig.scheduler.next(operator.ServerInfoQuery)
    scheduler = ProcessFacts("0.1.0", "c0ffee", "1.0", 7, 60 * 10**9, "box", 12)
    worker = ProcessFacts("0.1.0", "c0ffee", "1.0", 9, 30 * 10**9, "box", 13)
    rig.scheduler.send(operator.ServerInfoReply(query.query, scheduler, (worker,)))
    info = await asked
    assert info.gateway_id == rig.scheduler.hellos[0].gateway_id
    assert info.gateway.epoch == rig.scheduler.hellos[0].gateway_epoch
    assert (info.gateway.ipc_version, info.gateway.uptime_ms > 0) == ("1.1", True)
    (replica,) = info.replicas
    assert (replica.replica_id, replica.model, replica.scheduler.commit) == ("replica-0", "bytes", "c0ffee")
    assert [(one.epoch, one.pid) for one in replica.workers] == [(9, 13)]
    assert 50 < time.time() - replica.scheduler.start_time.seconds < 120


async def test_log_levels_change_for_a_time(rig: Any) -> None:
    set_log_level("warning")
    level = ops_pb2.LOG_LEVEL_DEBUG
    call = rig.ops.SetLogLevel(ops_pb2.SetLogLevelRequest(all=True, level=level, duration=Duration(nanos=50_000_000)))
    command = await rig.scheduler.next(operator.LogLevelCommand)
    assert (command.level, command.duration_ns) == ("debug", 50_000_000)
    rig.scheduler.send(front.LoadReply(command.query, 7, True, False, front.Load()))
    assert len((await call).results) == 2
    await rig.until(lambda: log_level() == "warning")
    error = await rig.caller.error(rig.ops.SetLogLevel(ops_pb2.SetLogLevelRequest(all=True)))
    assert error.fields == ["level"]
    error = await rig.caller.error(rig.ops.SetLogLevel(ops_pb2.SetLogLevelRequest(level=level)))
    assert error.fields == ["target"]


# ---- requests ----


async def test_a_request_is_inspected_wherever_it_is(rig: Any) -> None:
    asked = asyncio.ensure_future(rig.ops.InspectRequest(ops_pb2.InspectRequestRequest(tenant="ann", request_id="r1")))
    query = await rig.scheduler.next(operator.InspectQuery)
    assert (query.tenant, query.request_id) == ("ann", "r1")
    choice = operator.ChoiceRow(0, "swapped", 0, 12, 12, 11, 2, 7, 1)
    rig.scheduler.send(
        operator.InspectReply(query.query, ROW, ((WaitReason.SEATS, 4_000_000),), 7, 1, 0, (choice,), 64, 2, "ab" * 16)
    )
    answer = await asked
    assert (answer.summary.tenant, answer.summary.request_id, answer.summary.replica_id) == ("ann", "r1", "replica-0")
    assert answer.explanation.wait_ms == sum(share.wait_ms for share in answer.explanation.waits) == 4.0
    assert (answer.choices[0].state, answer.choices[0].num_blocks) == (pb.REQUEST_STATE_PREEMPTED, 2)
    assert (answer.max_tokens, answer.attempt, answer.trace_id) == (64, 2, "ab" * 16)
    asked = asyncio.ensure_future(
        rig.caller.error(rig.ops.InspectRequest(ops_pb2.InspectRequestRequest(tenant="x", request_id="r1")))
    )
    query = await rig.scheduler.next(operator.InspectQuery)
    rig.scheduler.send(front.QueryFailed(query.query, Reason.UNKNOWN_REQUEST, "no"))
    assert (await asked).code is grpc.StatusCode.NOT_FOUND


async def answer_lists(scheduler: Any, rows: list[operator.RequestRow]) -> None:
    """Plays a scheduler that has these requests."""
    while True:
        query = await scheduler.next(operator.RequestsQuery)
        wanted = [row for row in rows if row.number > query.after]
        page = tuple(wanted[: query.limit])
        scheduler.send(operator.RequestsReply(query.query, scheduler.epoch, page, len(wanted) > len(page)))


async def test_lists_of_several_replicas_are_merged_and_hold_each_request_once(
    start_rig: Any, settings: Any, tmp_path: Any
) -> None:
    def row(number: int, name: str, age: int) -> operator.RequestRow:
        return msgspec.structs.replace(ROW, number=number, request_id=name, age_ns=age)

    # r3 came to its replica late (it was handed in again), and is older than what came there before it.
    first = [row(1, "r1", 90), row(2, "r2", 20), row(5, "r3", 100), row(6, "r4", 10)]
    second = [row(1, "s1", 95), row(2, "s2", 50), row(3, "s3", 5)]
    async with two_replicas(start_rig, settings, tmp_path) as (rig, other):
        tasks = [
            asyncio.create_task(answer_lists(scheduler, rows))
            for scheduler, rows in ((rig.scheduler, first), (other, second))
        ]
        told: list[list[str]] = []
        token = ""
        while True:
            page = await rig.ops.ListRequests(ops_pb2.ListRequestsRequest(page_size=3, page_token=token))
            told.append([one.request_id for one in page.requests])
            token = page.next_page_token
            if not token:
                break
        assert told == [["s1", "r1", "s2"], ["r2", "r3", "r4"], ["s3"]]
        other.epoch = 71
        stale = (await rig.ops.ListRequests(ops_pb2.ListRequestsRequest(page_size=2))).next_page_token
        other.epoch = 72
        error = await rig.caller.error(rig.ops.ListRequests(ops_pb2.ListRequestsRequest(page_token=stale)))
        assert error.fields == ["page_token"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_bad_lists_are_refused_by_field(rig: Any) -> None:
    for token in ("x", "!!!", "gA==" * 8000):
        error = await rig.caller.error(rig.ops.ListRequests(ops_pb2.ListRequestsRequest(page_token=token)))
        assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["page_token"])
    states: list[Any] = [1, 99]
    error = await rig.caller.error(rig.ops.ListRequests(ops_pb2.ListRequestsRequest(states=states)))
    assert error.fields == ["states[1]"]


async def test_a_request_is_one_line(rig: Any) -> None:
    asked = asyncio.ensure_future(
        rig.ops.ListRequests(ops_pb2.ListRequestsRequest(states=[pb.REQUEST_STATE_RUNNING], tenant="ann"))
    )
    query = await rig.scheduler.next(operator.RequestsQuery)
    assert (query.tenant, query.states) == ("ann", ("running", "finishing"))
    rig.scheduler.send(operator.RequestsReply(query.query, 7, (ROW,), False))
    (one,) = (await asked).requests
    assert (one.tenant, one.request_id, one.state, one.priority) == ("ann", "r1", pb.REQUEST_STATE_RUNNING, 2)
    assert (one.total_ms, one.wait_ms, one.deadline_in_ms, one.is_attached) == (9.0, 4.0, 1000.0, True)
    assert not one.HasField("queue_position")


# ---- iterations ----


def iteration(number: int, name: str = "r1", num_riders: int = 1) -> operator.Iteration:
    sequence = operator.SequenceName("ann", name, 0)
    return operator.Iteration(
        number=number,
        worker_epoch=9,
        step=number + 5,
        age_ns=10**6,
        num_tokens=4,
        num_prefill_tokens=3,
        token_budget=64,
        num_seqs=2,
        max_num_seqs=8,
        num_waiting=1,
        blocks=operator.Blocks(10, 4, 1, 5, 16),
        plan_ns=10**6,
        device_ns=2 * 10**6,
        total_ns=3 * 10**6,
        num_discarded_rows=1,
        config_revision=2,
        boarded=(sequence,),
        departed=(operator.Departure(sequence, FinishReason.EOS),),
        displaced=(operator.Displacement(sequence, True),),
        riders=(operator.Rider(sequence, 4, True),) * num_riders,
    )


async def test_iterations_reach_who_watches_and_only_while_they_do(rig: Any) -> None:
    call = rig.ops.WatchIterations(ops_pb2.WatchIterationsRequest(include_riders=True, max_per_second=1e9))
    command = await rig.scheduler.next(operator.WatchCommand)
    assert (command.credit > 0, command.max_per_second, command.include_riders) == (True, 100.0, True)
    rig.scheduler.send(operator.IterationReport(7, iteration(1)))
    rig.scheduler.send(operator.IterationReport(7, iteration(5)))
    told: list[ops_pb2.Iteration] = []
    missed = 0
    while len(told) < 2:
        response = await call.read()
        told += response.iterations
        missed += response.num_missed
    assert missed == 3
    one = told[0]
    assert (one.step, one.num_tokens, one.num_prefill_tokens, one.token_budget) == (6, 4, 3, 64)
    assert (one.plan_ms, one.device_ms, one.total_ms, one.config_revision) == (1.0, 2.0, 3.0, 2)
    assert (one.riders[0].sequence.request_id, one.riders[0].num_tokens) == ("r1", 4)
    assert (one.boarded[0].tenant, one.departed[0].reason) == ("ann", pb.FINISH_REASON_EOS)
    assert one.preempted[0].mode == ops_pb2.PREEMPTION_MODE_SWAP
    assert (one.kv_blocks.total, one.kv_blocks.block_size) == (10, 16)
    assert abs(time.time() - one.plan_time.ToNanoseconds() / 1e9) < 60
    # It is asked again in time, and told when nobody watches any more.
    assert (await rig.scheduler.next(operator.WatchCommand)).credit > 0
    call.cancel()
    while (await rig.scheduler.next(operator.WatchCommand)).credit:
        pass


async def test_a_watcher_that_never_reads_holds_up_nobody_and_grows_no_memory(rig: Any) -> None:
    """Its buffer is bounded whatever comes; another watcher and a stream beside it go on."""
    frozen = rig.ops.WatchIterations(ops_pb2.WatchIterationsRequest(include_riders=True))
    reader = rig.ops.WatchIterations(ops_pb2.WatchIterationsRequest())
    await rig.until(lambda: len(rig.service._replicas.iterations._watchers) == 2)
    stream = rig.stub.Generate(pb.GenerateRequest(text="x"))
    submit = await rig.scheduler.accept()
    seen, number = 0, 0
    hub = rig.service._replicas.iterations
    deep = iteration(0, num_riders=2000)
    while seen < 300:
        for _ in range(20):
            number += 1
            rig.scheduler.send(operator.IterationReport(7, msgspec.structs.replace(deep, number=number)))
        # At the rate that a watcher may have: the next ones count as later ones.
        for watcher in hub._watchers:
            for buffer in watcher._buffers.values():
                buffer._due = 0.0
        response = await reader.read()
        seen += len(response.iterations) + response.num_missed
        assert not any(one.riders for one in response.iterations)
        for watcher in hub._watchers:
            for buffer in watcher._buffers.values():
                assert len(buffer._kept) <= MAX_BUFFERED
                assert buffer._num_names <= MAX_BUFFERED_NAMES + 2003
    rig.scheduler.tokens(submit.handle, 0, 70)
    rig.scheduler.finish(submit.handle, 1)
    assert (await rig.caller.events(stream))[-1].WhichOneof("event") == "finished"
    frozen.cancel()
    reader.cancel()


async def test_what_a_watcher_misses_is_counted(rig: Any) -> None:
    link = rig.service._replicas.links[0]
    watcher = Watcher("", MAX_ITERATIONS_PER_SECOND, include_riders=False)
    for number in range(1, 2 * MAX_BUFFERED + 1):
        watcher.offer(link, operator.IterationReport(7, iteration(number)))
        watcher._buffers["replica-0"]._due = 0.0
    (batch,) = await watcher.take()
    assert (len(batch.iterations), batch.num_missed) == (MAX_BUFFERED, MAX_BUFFERED)
    slow = Watcher("", 0.001, include_riders=False)
    for number in range(1, 11):
        slow.offer(link, operator.IterationReport(7, iteration(number)))
    (batch,) = await slow.take()
    assert (len(batch.iterations), batch.num_missed) == (2, 8)
    # Numbers of another life begin anew: nothing was missed for that.
    slow._buffers["replica-0"]._due = 0.0
    slow.offer(link, operator.IterationReport(8, iteration(50)))
    assert (await slow.take())[0].num_missed == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_rate_that_is_none_is_refused(rig: Any, rate: float) -> None:
    call = rig.ops.WatchIterations(ops_pb2.WatchIterationsRequest(max_per_second=rate))
    assert (await rig.caller.error(call)).fields == ["max_per_second"]


# ---- who sees what ----

_AUTH = f"""
[[tokens]]
name = "desk"
hash = "{hash_token("viewer-token")}"
role = "viewer"
[[tokens]]
name = "root"
hash = "{hash_token("admin-token")}"
role = "admin"
"""


async def told_names(rig: Any, token: str) -> tuple[str, str, str, list[str]]:
    """Tenant and id in a list, id in an iteration, tenants in the configuration, as the holder of `token` sees them."""
    metadata = (("authorization", f"Bearer {token}"),)
    listed = asyncio.ensure_future(rig.ops.ListRequests(ops_pb2.ListRequestsRequest(), metadata=metadata))
    query = await rig.scheduler.next(operator.RequestsQuery)
    rig.scheduler.send(operator.RequestsReply(query.query, 7, (ROW,), False))
    (row,) = (await listed).requests
    watch = rig.ops.WatchIterations(ops_pb2.WatchIterationsRequest(include_riders=True), metadata=metadata)
    watchers = rig.service._replicas.iterations._watchers
    await rig.until(lambda: len(watchers) == 1)
    rig.scheduler.send(operator.IterationReport(7, iteration(1)))
    (told,) = (await watch.read()).iterations
    watch.cancel()
    await rig.until(lambda: not watchers)
    sequences = [told.riders[0].sequence, told.boarded[0], told.departed[0].sequence, told.preempted[0].sequence]
    assert len({one.SerializeToString() for one in sequences}) == 1
    asked = asyncio.ensure_future(rig.ops.GetConfig(ops_pb2.GetConfigRequest(), metadata=metadata))
    query = await rig.scheduler.next(operator.ConfigQuery)
    rig.scheduler.send(config_reply(query.query))
    tenants = list((await asked).replicas[0].current.config.tenants)
    return row.tenant, row.request_id, sequences[0].request_id, tenants


async def test_a_viewer_sees_no_ids_and_no_tenants(start_rig: Any, tmp_path: Any) -> None:
    (tmp_path / "auth.toml").write_text(_AUTH)
    async with start_rig(auth_file=str(tmp_path / "auth.toml")) as rig:
        assert await told_names(rig, "admin-token") == ("ann", "r1", "r1", ["ann: weight=2"])
        tenant, listed, ridden, tenants = await told_names(rig, "viewer-token")
        assert (tenant, tenants) == ("", [])
        # The same request has the same name everywhere.
        assert listed == ridden
        assert listed.startswith("#")
        viewer = (("authorization", "Bearer viewer-token"),)
        call = rig.ops.ListRequests(ops_pb2.ListRequestsRequest(tenant="ann"), metadata=viewer)
        assert (await rig.caller.error(call)).fields == ["tenant"]
        update = ops_pb2.UpdateConfigRequest(replica_id="all")
        assert (await rig.caller.error(rig.ops.UpdateConfig(update, metadata=viewer))).code == (
            grpc.StatusCode.PERMISSION_DENIED
        )
    async with start_rig(auth_file=str(tmp_path / "auth.toml"), viewers_see_requests=True) as rig:
        assert await told_names(rig, "viewer-token") == ("ann", "r1", "r1", ["ann: weight=2"])


async def test_an_audit_line_says_who(start_rig: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "auth.toml").write_text(_AUTH)
    async with start_rig(auth_file=str(tmp_path / "auth.toml")) as rig:
        metadata = (("authorization", "Bearer admin-token"),)
        call = rig.ops.RollbackConfig(ops_pb2.RollbackConfigRequest(replica_id="all"), metadata=metadata)
        rollback = await rig.scheduler.next(operator.ConfigRollback)
        assert rollback.actor == "root"
        rig.scheduler.send(config_reply(rollback.query))
        await call
    (line,) = [line for line in "".join(capsys.readouterr()).splitlines() if "RollbackConfig" in line]
    assert "root" in line
    assert "token" not in line
