"""The wire: golden bytes for every message, evolution, and what malformed frames do."""

import random
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from chairlift.ipc import common, device, front, operator
from chairlift.ipc.codec import Codec, MalformedMessageError
from chairlift.ipc.tokens import ColumnError, pack_f32, pack_u32, pack_u64, unpack_f32, unpack_u32, unpack_u64

SAMPLING = common.SamplingParams(
    temperature=0.5, logit_bias=((7, -1.0),), seed=2**64 - 1, stop_token_ids=(2,), logprobs=0
)
GEOMETRY = device.Geometry("m", "f00d", 49152, 2048, (2,), 16, 100, 0, 8, 256, 23040, "bfloat16")
MODEL = front.ModelInfo("m", "f00d", 49152, 2048, (2,), 1600, "bfloat16", "none", "cpu", True)
LIMITS = front.ReplicaLimits(8, 256, 100, 1000, 16)
KNOBS = operator.SchedulingKnobs(
    8, 256, 16, 0, 0.01, 10, 100, True, True, "continuous", "fcfs", "recompute", 8, 50.0, 1000.0
)
LOGPROBS = front.DeltaLogprobs(256, 3, pack_u32([5, 6]), pack_f32([-0.5, -1.0]))

FACTS = common.ProcessFacts("0.1.0", "c0ffee", "1.0", 9, 5, "h", 77)
GUARD = operator.Guard(2, 50_000_000, 10)
REVISION = operator.ConfigRevision(2, KNOBS, 10, 2, ("policy",), "ann", "why", GUARD)
ROW = operator.RequestRow(1, "t", "r", "running", 0, 1, 3, 0, 2, 9, 4, 0)
CHOICE = operator.ChoiceRow(0, "running", 0, 5, 5, 4, 1, 2, 0)
NAME = operator.SequenceName("t", "r", 0)
ITERATION = operator.Iteration(
    *(3, 9, 4, 10, 5, 4, 64, 2, 8, 1, operator.Blocks(10, 4, 1, 5), 1, 2, 3, 0, 2, (NAME,)),
    departed=(operator.Departure(NAME, 1),),
    displaced=(operator.Displacement(NAME, False),),
    riders=(operator.Rider(NAME, 4, True),),
)

# What a release has sent stays readable for ever: these bytes only ever gain entries.
GOLDEN = dict(line.split() for line in (Path(__file__).parent / "golden.txt").read_text().splitlines())


def _samples() -> list[tuple[Any, Any]]:
    """One message of each type, (union, message)."""
    sched, work = device.ToScheduler, device.ToWorker
    up, down = front.ToScheduler, front.ToGateway
    row = device.BoardedRow(0, pack_u32([1, 2]), 2, 0, pack_u32([9]), 0, SAMPLING)
    return [
        (sched, device.WorkerHello(1, 0, (30,), 9, 0, 1, GEOMETRY, 77, "h", FACTS)),
        (sched, device.WorkerBeat(9, 0, 3, 0)),
        (sched, device.StepDone(9, 3, pack_u32([5]), pack_u32([0, 1]), (device.RowLogprobs(0, b"", b""),), (), 10, 2)),
        (sched, device.StepFailed(9, 3, "exception", "boom", pack_u32([1]))),
        (sched, device.NeedSnapshot(9, 4)),
        (sched, device.WorkerBye(9)),
        (work, common.HelloWanted(1)),
        (work, common.HelloRefused("VERSION_MISMATCH", "no")),
        (work, device.SchedulerGreeting(1, 0, (12,), 8)),
        (work, device.SchedulerBeat(8, 10)),
        (work, device.Plan(9, 1, True, b"", (row,), pack_u32([0, 5]), b"", b"", b"", b"", pack_u32([0, 2]))),
        (work, device.LogLevel("debug")),
        (up, front.GatewayHello(1, 0, (70,), "g", 5, "f00d")),
        (up, front.Submit(256, "t", "r", bytes(16), pack_u32([1]), SAMPLING, 2, 8, emitted=(b"", b""))),
        (up, front.Attach(512, "t", "r", 5, 7)),
        (up, front.Stopped(256, 3)),
        (up, front.Detach(256)),
        (up, front.Cancel(1, "t", "r")),
        (up, front.ExplainQuery(2, "t", "r")),
        (up, front.LoadQuery(3)),
        (up, front.DrainCommand(4, False, 10)),
        (up, front.FlushPrefixCacheCommand(5)),
        (up, operator.ConfigQuery(6)),
        (up, operator.ConfigChange(7, (("policy", "fair"), ("max_num_seqs", None)), 1, GUARD, "ann", "why", True)),
        (up, operator.ConfigRollback(8, 1, 2, "ann", "why")),
        (up, operator.RequestsQuery(9, "t", ("running",), 3, 10)),
        (up, operator.InspectQuery(10, "t", "r")),
        (up, operator.ServerInfoQuery(11)),
        (up, operator.LogLevelCommand(12, "debug", 5)),
        (up, operator.WatchCommand(64, 10.0, True)),
        (up, front.GatewayBeat(5)),
        (up, front.GatewayBye(5)),
        (down, front.SchedulerHello(1, 0, (50,), "replica-0", 6, LIMITS, True, False, MODEL)),
        (down, front.ReplicaState(6, False, True)),
        (down, front.Accepted(256, 1, 0, 5)),
        (down, front.Attached(256, 1, 2, 1, 3, (pack_u32([4]),), b"s", 0, ((LOGPROBS,),))),
        (down, front.Refused(256, "QUEUE_FULL", "full", "", (("max_num_queued_reqs", "1"),), 10)),
        (down, front.Deltas(pack_u64([256]), pack_u32([0]), pack_u32([4]), b"", (LOGPROBS,))),
        (down, front.Finished(256, common.FinishReason.LENGTH, 4)),
        (down, front.Superseded(256)),
        (down, front.CancelReply(1, common.CancelOutcome.WAS_RUNNING)),
        (down, front.ExplainReply(2, "r", "running", 5, ((1, 5),), 9, 1, 1, 0, 0, 0, 1, 1)),
        (down, front.QueryFailed(2, "UNKNOWN_REQUEST", "no")),
        (down, front.LoadReply(3, 6, True, False, front.Load())),
        (down, operator.ConfigReply(6, 1, KNOBS, 10, REVISION, (REVISION,))),
        (down, operator.RequestsReply(9, 6, (ROW,), True)),
        (down, operator.InspectReply(10, ROW, ((1, 5),), 1, 1, 0, (CHOICE,), 8, 1)),
        (down, operator.ServerInfoReply(11, FACTS, (FACTS,))),
        (down, operator.IterationReport(6, ITERATION)),
        (down, front.ReplicaBeat(6, front.Load(running=1), 10)),
    ]


SAMPLES = _samples()


@pytest.mark.parametrize(("union", "message"), SAMPLES, ids=lambda value: type(value).__name__)
def test_every_message_survives_its_link(union: Any, message: Any) -> None:
    codec: Codec[Any] = Codec(union)
    assert codec.decode(codec.encode(message)) == message


def test_every_message_of_every_link_has_a_sample() -> None:
    unions = (device.ToScheduler, device.ToWorker, front.ToScheduler, front.ToGateway)
    for union in unions:
        sampled = {type(message) for its_union, message in SAMPLES if its_union is union}
        shared = {common.HelloWanted, common.HelloRefused}
        assert set(get_args(union)) - sampled <= shared


def test_tags_are_unique_over_both_links() -> None:
    tags: dict[int, type] = {}
    for union in (device.ToScheduler, device.ToWorker, front.ToScheduler, front.ToGateway):
        for kind in get_args(union):
            assert tags.setdefault(kind.__struct_config__.tag, kind) is kind


@pytest.mark.parametrize(("union", "message"), SAMPLES, ids=lambda value: type(value).__name__)
def test_golden_bytes(union: Any, message: Any) -> None:
    codec: Codec[Any] = Codec(union)
    golden = GOLDEN[type(message).__name__]
    assert codec.encode(message).hex() == golden
    assert codec.decode(bytes.fromhex(golden)) == message


def test_a_newer_minor_may_append_fields() -> None:
    """A peer one minor ahead sends a field more than this build knows; it is skipped, the rest is read."""
    raw = msgspec.msgpack.decode(front.to_scheduler_codec().encode(front.Stopped(256, 3)))
    assert front.to_scheduler_codec().decode(msgspec.msgpack.encode([*raw, "new field"])) == front.Stopped(256, 3)


def test_an_older_minor_may_lack_appended_fields() -> None:
    """A peer one minor behind sends fewer fields; those with defaults take them."""
    frame = msgspec.msgpack.encode([51, 256, "t", "r", bytes(16), pack_u32([1])])
    assert front.to_scheduler_codec().decode(frame) == front.Submit(256, "t", "r", bytes(16), pack_u32([1]))


@pytest.mark.parametrize(
    ("union", "name", "frame"),
    [
        (device.ToWorker, "SchedulerBeat", "921f08"),
        (front.ToGateway, "ReplicaBeat", "935206dc001901000000000000000000000000000000000000000000000001"),
    ],
)
def test_a_beat_of_version_1_0_tells_nothing_of_the_next_one(union: Any, name: str, frame: str) -> None:
    codec: Codec[Any] = Codec(union)
    beat = codec.decode(bytes.fromhex(frame))
    assert (type(beat).__name__, beat.next_in_ns) == (name, 0)


def test_codec_announces_its_tags() -> None:
    assert {10, 12} <= set(device.to_scheduler_codec().tags)
    assert {51, 52} <= set(front.to_scheduler_codec().tags)


def test_malformed_frames_raise_one_typed_error_and_show_no_payload() -> None:
    rng = random.Random(1)
    secret = "a-prompt-nobody-may-see"
    frame = front.to_scheduler_codec().encode(front.Cancel(1, "t", secret))
    codec = front.to_scheduler_codec()
    errors = []
    for _ in range(3000):
        mutant = bytearray(frame)
        for _ in range(rng.randrange(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.randrange(256)
        try:
            codec.decode(bytes(mutant[: rng.randrange(len(mutant) + 1)]))
        except MalformedMessageError as error:
            errors.append(str(error))
    assert len(errors) > 1000
    assert not any("nobody" in error for error in errors)


def test_oversize_and_unknown_tags_are_malformed() -> None:
    codec = front.to_scheduler_codec(max_bytes=8)
    with pytest.raises(MalformedMessageError, match="limit"):
        codec.decode(bytes(9))
    with pytest.raises(MalformedMessageError):
        front.to_scheduler_codec().decode(msgspec.msgpack.encode([999, 1]))


def test_major_versions_decide_compatibility() -> None:
    assert common.is_compatible(common.PROTOCOL_MAJOR)
    assert not common.is_compatible(common.PROTOCOL_MAJOR + 1)


@pytest.mark.parametrize(
    ("pack", "unpack", "values"),
    [
        (pack_u32, unpack_u32, [0, 1, 2**32 - 1]),
        (pack_u64, unpack_u64, [0, 2**64 - 1]),
        (pack_f32, unpack_f32, [0.5, -1.25]),
    ],
)
def test_columns_round_trip(pack: Any, unpack: Any, values: list[Any]) -> None:
    assert list(unpack(pack(values))) == values
    with pytest.raises(ColumnError):
        unpack(pack(values) + b"x")


def test_columns_are_little_endian_whatever_the_machine() -> None:
    assert pack_u32([1]) == b"\x01\0\0\0"
    assert pack_u64([256]) == b"\0\x01\0\0\0\0\0\0"
    assert pack_f32([1.0]) == b"\0\0\x80?"


def test_ids_beyond_their_width_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack_u32([2**32])
