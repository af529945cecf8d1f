"""What operators ask of a scheduler, over real sockets."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.ipc import device, front, operator
from chairlift.ipc.common import ProcessFacts, Reason
from chairlift.ipc.tokens import unpack_u32
from chairlift.runtime.settings import SchedulerSettings, Settings
from scheduler_svc.config import CHANGEABLE, KNOB_NAMES, KnobFaultError, changed_config, scheduling_knobs
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.frames import read_frames, read_header
from scheduler_svc.core.revisions import GuardMetric, Origin
from scheduler_svc.sim.replay import replay

New = Callable[..., Any]
GEOMETRY = device.Geometry("tiny", "f00d", 1000, 256, (2,), 16, 64, 0, 8, 256, 1024, "float32")


class Desk:
    """A gateway that asks what operators ask."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self._number = 100

    def ask(self, kind: type, *fields: Any, **named: Any) -> Any:
        self._number += 1
        self.gateway.send(kind(self._number, *fields, **named))
        answers = (
            front.QueryFailed,
            front.LoadReply,
            operator.ConfigReply,
            operator.RequestsReply,
            operator.InspectReply,
            operator.ServerInfoReply,
        )
        reply = self.gateway.receive(*answers)
        assert reply.query == self._number
        return reply

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Asks until `condition` gives something true, and returns that; `what` says in words what did not come."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if found := condition():
                return found
            self.ask(front.LoadQuery)
        raise AssertionError(f"not within 20 s: {what}")

    def change(self, **knobs: Any) -> Any:
        return self.ask(operator.ConfigChange, tuple(knobs.items()), actor="ann", comment="a test")


@pytest.fixture
def rig(start: New, new_gateway: New, new_worker: New) -> tuple[Desk, Any, Any]:
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    return Desk(gateway), gateway, worker


def rows(plan: device.Plan) -> int:
    return len(unpack_u32(plan.decode)) + len(unpack_u32(plan.chunks)) // 2


def test_a_change_holds_from_the_next_plan_on_and_riders_stay(rig: tuple[Desk, Any, Any]) -> None:
    """Lowering max_num_seqs drains seats: nobody who rides is put out."""
    desk, gateway, worker = rig
    for i in range(4):
        gateway.submit(256 * (i + 1), max_tokens=6 if i < 2 else 12)
    # The first rides alone, the others board in the next plan made.
    while rows(worker.step()) < 4:
        pass
    reply = desk.change(max_num_seqs=2)
    assert (reply.revision, reply.current.changed, reply.knobs.max_num_seqs) == (
        2,
        ("max_num_seqs",),
        2,
    )
    assert (reply.current.actor, reply.current.comment, reply.current.origin) == ("ann", "a test", Origin.UPDATE)
    gateway.submit(256 * 9, max_tokens=3)
    sizes = []
    finished = 0
    while finished < 5:
        sizes.append(rows(worker.step()))
        gateway.send(front.LoadQuery(1))
        while not isinstance(message := gateway.receive(front.Finished, front.LoadReply), front.LoadReply):
            finished += 1
            assert message.preemptions == 0
        if message.load.running == 0:
            break
    assert max(sizes) == 4
    drained = sizes.index(next(size for size in sizes if size <= 2))
    assert max(sizes[drained:]) <= 2
    limits = gateway.receive(front.ReplicaState, front.ReplicaBeat)
    assert limits is not None


def test_a_wrong_revision_and_bad_values_change_nothing(rig: tuple[Desk, Any, Any]) -> None:
    desk, _, _ = rig
    refused = desk.ask(operator.ConfigChange, (("max_num_seqs", 2),), expected_revision=5)
    assert (refused.reason, refused.field, refused.limits) == (Reason.WRONG_REVISION, "", (("revision", "1"),))
    for name, value, words in (
        ("max_num_seqs", 0, ">= 1"),
        ("max_num_seqs", 9, "8 at most"),
        ("max_num_batched_tokens", 10_000, "256 at most"),
        ("watermark", 1.5, "< 1.0"),
        ("policy", "random", "random"),
        ("block_size", 32, "fixed"),
        ("record", "/tmp/x", "no knob"),
        ("tenants", ("nonsense",), "regex"),
        ("enable_chunked_prefill", "yes", "bool"),
    ):
        refused = desk.change(**{name: value})
        assert isinstance(refused, front.QueryFailed), name
        assert (refused.reason, refused.field) == (Reason.INVALID_REQUEST, name)
        assert words in refused.message
    conflict = desk.change(itl_target_ms=5.0, enable_chunked_prefill=False)
    assert (conflict.reason, conflict.field) == (Reason.INVALID_REQUEST, "")
    assert "itl_target_ms" in conflict.message
    guard = operator.Guard(99, 1, 1)
    assert desk.ask(operator.ConfigChange, (("policy", "fair"),), guard=guard).field == "guard.metric"
    assert desk.ask(operator.ConfigQuery).revision == 1


def test_a_change_can_be_validated_only(rig: tuple[Desk, Any, Any]) -> None:
    desk, _, _ = rig
    ask = operator.ConfigChange
    assert desk.ask(ask, (("policy", "fair"),), 1, validate_only=True).revision == 1
    assert desk.ask(ask, (("policy", "fair"),), 2, validate_only=True).reason == Reason.WRONG_REVISION
    bad = desk.ask(ask, (("itl_target_ms", 5.0), ("enable_chunked_prefill", False)), validate_only=True)
    assert bad.reason == Reason.INVALID_REQUEST
    for guard in (operator.Guard(GuardMetric.ITL_P99, 1, 0), operator.Guard(GuardMetric.ITL_P99, -1, 1)):
        told = [
            msgspec.structs.replace(
                desk.ask(ask, (("policy", "fair"),), guard=guard, validate_only=validate_only), query=0
            )
            for validate_only in (True, False)
        ]
        assert told[0] == told[1]
        assert (told[0].reason, "guard" in told[0].message) == (Reason.INVALID_REQUEST, True)
    assert desk.ask(operator.ConfigQuery).knobs.policy == "fcfs"


def test_history_and_rollback(rig: tuple[Desk, Any, Any]) -> None:
    desk, _, _ = rig
    desk.change(policy="priority", max_priority_wait_s=2.5)
    desk.change(block_size=16, tenants=("ann: weight=3",), ttft_slo_ms=100.0)
    back = desk.ask(operator.ConfigRollback, actor="bob", comment="worse")
    assert (back.revision, back.current.origin, back.knobs.ttft_slo_ms) == (4, Origin.ROLLBACK, 0.0)
    first = desk.ask(operator.ConfigRollback, 1, 4)
    assert (first.revision, first.knobs.policy) == (5, "fcfs")
    assert desk.ask(operator.ConfigRollback, 77).reason == Reason.INVALID_REQUEST
    reply = desk.ask(operator.ConfigQuery, True)
    told = [reply.current, *reply.history]
    assert [one.number for one in told] == [5, 4, 3, 2, 1]
    assert [one.changed for one in told][:3] == [
        ("policy", "max_priority_wait_s"),
        ("ttft_slo_ms", "tenants"),
        ("ttft_slo_ms", "tenants"),
    ]
    assert told[1].actor == "bob"
    assert told[0].age_ns <= told[1].age_ns <= told[4].age_ns < 60_000_000_000


def test_a_guard_takes_a_change_back_and_says_so(
    start: New, new_gateway: New, new_worker: New, capsys: pytest.CaptureFixture[str]
) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    desk = Desk(gateway)
    guard = operator.Guard(GuardMetric.TTFT_P99, 1_000, 100_000_000)
    changed = desk.ask(operator.ConfigChange, (("max_num_seqs", 1),), guard=guard)
    assert changed.current.guard == guard
    gateway.submit(256, max_tokens=1)
    worker.step()
    gateway.receive(front.Finished)
    desk.until(lambda: desk.ask(operator.ConfigQuery).revision != 2, "the guard takes the change back")
    reply = desk.ask(operator.ConfigQuery, True)
    assert (reply.current.origin, reply.knobs.max_num_seqs) == (Origin.GUARD, 8)
    assert reply.current.comment == "ttft_p99_ms passed 0.001 under revision 2"
    assert reply.history[0].guard is None
    assert desk.ask(front.LoadQuery).load.config_revision == 3
    written = capsys.readouterr()
    lines = [line for line in (written.out + written.err).splitlines() if "config_revised" in line]
    assert len(lines) == 2
    assert "guard" in lines[1]


def test_changes_are_recorded_and_replay(
    start: New, settings: Settings, new_gateway: New, new_worker: New, tmp_path: Path
) -> None:
    folder = tmp_path / "recordings"
    recorded = msgspec.structs.replace(settings.scheduler, record=str(folder))
    service, stop, thread = start(msgspec.structs.replace(settings, scheduler=recorded))
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    desk = Desk(gateway)
    gateway.send(operator.WatchCommand(64, 100.0, True))
    for i in range(3):
        gateway.submit(256 * (i + 1), max_tokens=3)
    worker.step()
    desk.change(max_num_seqs=1, policy="fair", tenants=("secretive: weight=2",))
    desk.ask(operator.ConfigRollback, actor="secretive", comment="secretive")
    desk.change(long_prefill_token_threshold=2)
    while (load := desk.ask(front.LoadQuery).load).running + load.waiting:
        worker.step()
    stop.request()
    thread.join(20)
    service.close()
    (file,) = folder.iterdir()
    assert b"secretive" not in file.read_bytes()
    with file.open("rb") as frames:
        assert replay(read_header(frames), read_frames(frames)).difference is None


def test_requests_are_listed_and_inspected(rig: tuple[Desk, Any, Any]) -> None:
    desk, gateway, worker = rig
    for i in range(3):
        gateway.submit(256 * (i + 1), max_tokens=4)
    worker.step()
    gateway.receive(front.Deltas)
    reply = desk.ask(operator.RequestsQuery, limit=2)
    assert [row.request_id for row in reply.requests] == ["r256", "r512"]
    assert reply.has_more
    rest = desk.ask(operator.RequestsQuery, after=reply.requests[-1].number)
    assert ([row.request_id for row in rest.requests], rest.has_more) == (["r768"], False)
    inspected = desk.ask(operator.InspectQuery, "t", "r256")
    assert inspected.request.is_attached
    assert inspected.choices[0].known_tokens >= 4
    assert desk.ask(operator.InspectQuery, "other", "r256").reason == Reason.UNKNOWN_REQUEST


def test_processes_tell_who_they_are(start: New, new_gateway: New, new_worker: New) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    facts = ProcessFacts("9.9", "c0ffee", "1.0", worker.epoch, 5_000_000_000, "box", 77)
    worker.send(device.WorkerHello(1, 0, (33,), worker.epoch, 0, 1, GEOMETRY, 77, "box", facts))
    worker.receive(device.SchedulerGreeting)
    gateway.greet()
    desk = Desk(gateway)
    reply = desk.ask(operator.ServerInfoQuery)
    assert (reply.scheduler.ipc_version, reply.scheduler.version) == ("1.1", "0.1.0")
    (told,) = reply.workers
    assert (told.version, told.commit, told.pid) == ("9.9", "c0ffee", 77)
    assert told.uptime_ns > 5_000_000_000
    assert desk.ask(operator.LogLevelCommand, "error", 1).ready
    assert worker.receive(device.LogLevel).level == "error"
    # Its time is over with the next beat.
    assert worker.receive(device.LogLevel).level != "error"
    assert desk.ask(operator.LogLevelCommand, "loud").field == "level"


def test_flushing_tells_what_it_freed(rig: tuple[Desk, Any, Any]) -> None:
    desk, gateway, worker = rig
    gateway.submit(256, max_tokens=1, prompt=b"\1\0\0\0" * 40)
    worker.step()
    gateway.receive(front.Finished)
    assert desk.ask(front.FlushPrefixCacheCommand).num_flushed == 2
    assert desk.ask(front.FlushPrefixCacheCommand).num_flushed == 0


def test_a_gateway_that_watches_is_told_iterations(rig: tuple[Desk, Any, Any]) -> None:
    _, gateway, worker = rig
    gateway.send(operator.WatchCommand(2, 1e9, True))
    gateway.submit(256, max_tokens=2)
    worker.step()
    worker.step()
    iteration = gateway.receive(operator.IterationReport).iteration
    assert [rider.sequence for rider in iteration.riders] == [operator.SequenceName("t", "r256", 0)]
    assert (iteration.number, iteration.num_tokens, iteration.max_num_seqs) == (1, 3, 8)
    assert iteration.plan_ns > 0


def test_a_gateway_that_has_gone_watches_no_more(start: New, new_gateway: New, new_worker: New) -> None:
    service, _, _ = start()
    gateway, other, worker = new_gateway(), new_gateway(name="other"), new_worker()
    worker.join()
    gateway.greet()
    other.greet()
    gateway.send(operator.WatchCommand(64, float("nan"), False))
    assert Desk(gateway).ask(front.LoadQuery).query
    assert service._feed.watch is not None
    gateway.send(front.GatewayBye(gateway.epoch))
    Desk(other).until(lambda: service._feed.watch is None, "nobody watches any more")


def test_every_knob_goes_there_and_back() -> None:
    """Units: what GetConfig tells can be sent back by UpdateConfig and changes nothing."""
    settings = SchedulerSettings(
        watermark=0.25,
        static_batch_wait_ms=2.5,
        itl_target_ms=20.5,
        max_priority_wait_s=3.5,
        queue_timeout_ms=10.0,
        ttft_slo_ms=11.0,
        tenants=("a: weight=2",),
    )
    values = [(name, getattr(settings, name)) for name in KNOB_NAMES if name != "block_size"]
    config = changed_config(SchedulingConfig(), values, GEOMETRY)
    knobs = scheduling_knobs(config, GEOMETRY)
    for name in CHANGEABLE - {"max_num_seqs", "max_num_batched_tokens", "static_batch_size"}:
        expected = getattr(settings, name)
        assert getattr(knobs, name) == (0 if expected is None else expected), name
    assert (knobs.max_num_seqs, knobs.max_num_batched_tokens, knobs.static_batch_size) == (8, 256, 8)
    assert scheduling_knobs(SchedulingConfig(), None).max_num_seqs == 0
    with pytest.raises(KnobFaultError, match="block_size"):
        changed_config(config, [("block_size", 16)], None)
