"""The scheduler's shell over real sockets: handshakes, lost peers, malformed frames, drain."""

import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.ipc import device, front, operator
from chairlift.ipc.common import FinishReason, HelloRefused, HelloWanted, Reason
from chairlift.ipc.tokens import unpack_u32, unpack_u64
from chairlift.runtime import sockets
from chairlift.runtime.probes import STALE_AFTER_S
from chairlift.runtime.settings import SchedulerSettings, Settings
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.frames import read_frames, read_header
from scheduler_svc.core.units import to_config
from scheduler_svc.service import SchedulerService
from scheduler_svc.sim.replay import replay

New = Callable[..., Any]


def _ready(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_request_goes_through(start: New, new_gateway: New, new_worker: New) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.greet()
    assert isinstance(worker.receive(), device.SchedulerGreeting)
    gateway.greet()
    hello = gateway.receive(front.SchedulerHello)
    assert (hello.ready, hello.model.model, hello.limits.max_num_seqs) == (True, "tiny", 8)
    gateway.submit(256)
    assert gateway.receive(front.Accepted, front.Refused).handle == 256
    offsets: list[int] = []
    while len(offsets) < 4:
        worker.step()
        deltas = gateway.receive(front.Deltas)
        assert list(unpack_u64(deltas.handles)) == [256]
        assert list(unpack_u32(deltas.tokens)) == [11]
        offsets += unpack_u32(deltas.offsets)
    finished = gateway.receive(front.Finished)
    assert offsets == [0, 1, 2, 3]
    assert (finished.reason, finished.num_tokens, finished.request_ended) == (FinishReason.LENGTH, 4, True)


def test_readiness_follows_the_worker(start: New, new_gateway: New, new_worker: New) -> None:
    service, _, _ = start()
    port = service.probe_port
    assert _ready(port) == 503
    gateway = new_gateway()
    gateway.greet()
    assert gateway.receive(front.SchedulerHello).ready is False
    worker = new_worker()
    worker.greet()
    assert gateway.receive(front.ReplicaState).ready is True
    assert _ready(port) == 200


def test_a_silent_worker_is_lost_and_its_work_planned_anew(
    start: New, settings: Settings, new_gateway: New, new_worker: New
) -> None:
    """vllm#39863: a worker that dies goes unseen. Here its riders board again on the next one, from where they were."""
    quick = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=1.0)
    start(msgspec.structs.replace(settings, ipc=quick))
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256)
    worker.step(token=21)
    first = gateway.receive(front.Deltas)
    gateway.await_load(lambda load: load.worker_epoch == 0, "a beat that tells of the loss")
    successor = new_worker(epoch=8)
    successor.greet()
    plan = successor.step(token=22)
    assert plan.reset
    assert list(unpack_u32(plan.boarded[0].tokens)) == [5, 6, 7, 21]
    second = gateway.receive(front.Deltas)
    assert [*unpack_u32(first.offsets), *unpack_u32(second.offsets)] == [0, 1]


def test_strangers_are_asked_to_greet(start: New, new_gateway: New, new_worker: New) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    gateway.send(front.LoadQuery(1))
    assert isinstance(gateway.receive(), HelloWanted)
    worker.send(device.NeedSnapshot(7, 1))
    assert isinstance(worker.receive(), HelloWanted)


def test_other_major_versions_and_other_models_are_refused(start: New, new_gateway: New, new_worker: New) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.greet(major=99)
    assert worker.receive(HelloRefused).reason == Reason.VERSION_MISMATCH
    gateway.greet(major=99)
    assert gateway.receive(HelloRefused).reason == Reason.VERSION_MISMATCH
    worker.greet(geometry=msgspec.structs.replace(worker_geometry(), num_blocks=0))
    assert worker.receive(HelloRefused).reason == Reason.GEOMETRY_MISMATCH
    gateway.greet(fingerprint="other")
    gateway.receive(front.SchedulerHello)
    worker.greet()
    assert gateway.receive(HelloRefused).reason == Reason.FINGERPRINT_MISMATCH
    gateway.greet(fingerprint="other")
    assert gateway.receive(HelloRefused).reason == Reason.FINGERPRINT_MISMATCH


def worker_geometry() -> device.Geometry:
    return device.Geometry("tiny", "f00d", 1000, 256, (2,), 16, 64, 0, 8, 256, 1024, "float32")


def test_malformed_frames_do_no_harm(start: New, new_gateway: New, new_worker: New) -> None:
    """5,000 mutants of valid frames on both sockets; the stream beside them goes on."""
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256, max_tokens=2)
    bad_gateway, bad_worker = new_gateway(name="bad"), new_worker(epoch=9, name=b"worker-bad")
    bad_gateway.greet()
    rng = random.Random(3)
    encode = msgspec.msgpack.encode
    frames = [encode(front.Submit(512, "t", "x", bytes(16), b"\1\0\0\0")), encode(front.Attach(1, "t", "x"))]
    for _ in range(2500):
        for peer, frame in ((bad_gateway, rng.choice(frames)), (bad_worker, encode(device.StepDone(9, 1, b"")))):
            mutant = bytearray(frame)
            for _ in range(rng.randrange(1, 4)):
                mutant[rng.randrange(len(mutant))] = rng.randrange(256)
            peer.socket.send(bytes(mutant))
    bad_gateway.socket.send_multipart([b"two", b"frames"])
    gateway.send(front.LoadQuery(1))
    assert gateway.receive(front.LoadReply).query == 1
    gateway.await_load(lambda load: load.malformed_messages >= 1000, "a beat that tells of every bad frame")
    worker.step()
    assert gateway.receive(front.Deltas)


def test_a_worker_that_reconnects_keeps_its_cache(start: New, new_gateway: New, new_worker: New) -> None:
    """A connection was reset, and a plan with it: the same life greets again and goes on from a snapshot."""
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256)
    worker.step(token=21)
    gateway.receive(front.Deltas)
    lost = worker.receive(device.Plan)
    worker.join()
    plan = worker.step(token=22)
    assert (plan.reset, plan.step > lost.step) == (True, True)
    assert plan.boarded[0].computed == 3, "what was computed before is not computed again"
    deltas = gateway.receive(front.Deltas)
    assert (list(unpack_u32(deltas.offsets)), list(unpack_u32(deltas.tokens))) == ([1], [22])
    load = gateway.await_load(lambda load: load.steps >= 2, "a beat that tells both steps")
    assert load.worker_losses == 0


def test_a_worker_without_a_connection_is_lost_at_once(start: New, new_gateway: New, new_worker: New) -> None:
    """A process that died is noticed by its connection, long before its silence would tell."""
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.await_load(lambda load: load.worker_epoch != 0, "a beat that tells of the worker")
    worker.close()
    gateway.await_load(lambda load: load.worker_losses == 1, "a beat that tells of the loss")


@pytest.fixture
def resting(settings: Settings) -> Settings:
    """Those of a scheduler that would rest for longer than any test lasts."""
    return msgspec.structs.replace(
        settings, ipc=msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=1.0, idle_heartbeat_interval_s=60.0)
    )


@pytest.fixture
def peers_at_rest(start: New, resting: Settings, new_gateway: New, new_worker: New) -> tuple[Any, Any]:
    """The gateway and the worker of a scheduler that rests."""
    start(resting)
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.await_rest()
    return gateway, worker


def test_a_worker_that_dies_while_nothing_happens_is_lost_at_once(peers_at_rest: tuple[Any, Any]) -> None:
    """The end of its connection is noticed, not its silence: the next beat may be a minute off."""
    gateway, worker = peers_at_rest
    worker.close()
    gateway.await_load(lambda load: load.worker_losses == 1, "a beat that tells of the loss")


def test_a_worker_that_hangs_is_lost_as_soon_as_there_is_work(peers_at_rest: tuple[Any, Any]) -> None:
    """It never answered the last beat before the rest; nobody needed it until the request came."""
    gateway, worker = peers_at_rest
    gateway.submit(256)
    worker.receive(device.Plan)
    gateway.await_load(lambda load: load.worker_losses == 1, "a beat that tells of the loss")


def test_a_peer_one_minor_behind_hears_beats_as_usual(
    start: New, resting: Settings, new_gateway: New, new_worker: New
) -> None:
    """It would take the rest for silence."""
    start(resting)
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet(minor=0)
    for _ in range(6):
        assert gateway.receive(front.ReplicaBeat).next_in_ns == 0
        gateway.send(front.GatewayBeat(gateway.epoch))
        worker.send(device.WorkerBeat(worker.epoch, 0, 0, 0))
    gateway.greet()
    gateway.await_rest()


def test_a_resting_scheduler_is_live(start: New, resting: Settings, new_gateway: New) -> None:
    service, _, _ = start(resting)
    gateway = new_gateway()
    gateway.greet()
    gateway.await_rest()
    # The beat that tells of the rest is sent before the turn has ended.
    deadline = time.monotonic() + 10
    while service.state.lives_until < time.monotonic() + STALE_AFTER_S:
        assert time.monotonic() < deadline, "it says that it lives for no longer than one that does not rest"
        time.sleep(0.01)


def test_a_gateway_that_greets_again_starts_anew(start: New, new_gateway: New, new_worker: New) -> None:
    """A reconnect may have lost messages: the old attachment ends, and a new one gets everything from the start."""
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256)
    worker.step(token=30)
    gateway.receive(front.Deltas)
    gateway.greet()
    gateway.receive(front.SchedulerHello)
    gateway.send(front.Attach(512, "t", "r256"))
    attached = gateway.receive(front.Attached, front.Refused)
    assert attached.handle == 512
    assert list(unpack_u32(attached.outputs[0])) == [30]
    worker.step(token=31)
    assert list(unpack_u64(gateway.receive(front.Deltas).handles)) == [512]


def test_drain_finishes_what_runs_and_refuses_what_comes(
    start: New, settings: Settings, new_gateway: New, new_worker: New
) -> None:
    patient = msgspec.structs.replace(settings.scheduler, drain_timeout_s=20.0)
    _, stop, thread = start(msgspec.structs.replace(settings, scheduler=patient))
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256, max_tokens=3)
    worker.step()
    gateway.receive(front.Deltas)
    stop.request()
    assert gateway.receive(front.ReplicaState).draining is True
    gateway.submit(512)
    refused = gateway.receive(front.Refused)
    assert (refused.handle, refused.reason) == (512, Reason.DRAINING)
    worker.step()
    worker.step()
    assert gateway.receive(front.Finished).reason == FinishReason.LENGTH
    thread.join(20)
    assert not thread.is_alive()


def test_operator_commands_are_answered_by_the_cores_counts(start: New, new_gateway: New, new_worker: New) -> None:
    start()
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256)
    worker.step()
    gateway.receive(front.Deltas)
    gateway.send(front.LoadQuery(1))
    load = gateway.receive(front.LoadReply).load
    assert (load.running, load.blocks_used, load.blocks_total, load.attached_gateways) == (1, 1, 64, 1)
    gateway.send(operator.ConfigQuery(5))
    config = gateway.receive(operator.ConfigReply)
    assert (config.revision, config.knobs.max_num_seqs, config.knobs.block_size) == (1, 8, 16)
    assert (config.knobs.watermark, config.knobs.static_batch_wait_ms) == (0.01, 50.0)
    gateway.send(front.DrainCommand(2))
    assert gateway.receive(front.LoadReply).draining is True
    gateway.send(front.DrainCommand(3, undrain=True))
    assert gateway.receive(front.LoadReply).draining is False
    gateway.send(front.FlushPrefixCacheCommand(4))
    assert gateway.receive(front.LoadReply).query == 4


def test_both_endpoints_are_private_files_and_go_with_the_process(start: New, settings: Settings) -> None:
    service, stop, thread = start()
    folder = sockets.run_dir(settings.ipc)
    assert sorted(path.name for path in folder.iterdir()) == ["gateway.sock", "worker.sock"]
    stop.request()
    thread.join(20)
    service.close()
    assert list(folder.iterdir()) == []


def test_every_knob_of_the_settings_reaches_the_core() -> None:
    """A knob that the settings file offers and the core never sees would be a lie."""
    only_shell = {"replica_id", "metrics_listen", "drain_timeout_s", "block_size"}
    only_shell |= {"record", "record_tokens", "record_max_bytes", "record_max_age_s"}
    renamed = {"watermark": "watermark_ppm"}
    for name in set(SchedulerSettings.__struct_fields__) - only_shell:
        knob = renamed.get(name, name)
        for suffix in ("_s", "_ms"):
            knob = knob.removesuffix(suffix) + "_ns" if knob.endswith(suffix) else knob
        assert knob in SchedulingConfig.__struct_fields__
    config = to_config(SchedulerSettings(watermark=0.25, static_batch_wait_ms=2.0, gateway_loss_grace_s=3.0))
    assert (config.watermark_ppm, config.static_batch_wait_ns, config.gateway_loss_grace_ns) == (
        250_000,
        2_000_000,
        3_000_000_000,
    )


def test_defaults_agree_with_the_cores() -> None:
    assert to_config(SchedulerSettings()) == SchedulingConfig()


@pytest.mark.parametrize("section", ["gateway_endpoint", "worker_endpoint"])
def test_an_endpoint_that_cannot_be_bound_is_a_clear_error(settings: Settings, section: str) -> None:
    ipc = msgspec.structs.replace(settings.ipc, **{section: "ipc:///no/such/folder/x.sock"})
    with pytest.raises(sockets.EndpointError, match="no/such/folder"):
        SchedulerService(msgspec.structs.replace(settings, ipc=ipc))


def test_what_is_recorded_replays_to_the_same_plans(
    start: New, settings: Settings, new_gateway: New, new_worker: New, tmp_path: Path
) -> None:
    folder = tmp_path / "recordings"
    recorded = msgspec.structs.replace(settings.scheduler, record=str(folder))
    service, stop, thread = start(msgspec.structs.replace(settings, scheduler=recorded))
    gateway, worker = new_gateway(), new_worker()
    worker.join()
    gateway.greet()
    gateway.submit(256, max_tokens=3)
    for _ in range(3):
        worker.step()
    gateway.receive(front.Finished)
    stop.request()
    thread.join(20)
    service.close()
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    with file.open("rb") as frames:
        result = replay(read_header(frames), read_frames(frames))
    assert result.difference is None
    assert result.num_plans >= 3


def test_a_second_worker_waits_until_the_first_is_gone(
    start: New, settings: Settings, new_gateway: New, new_worker: New
) -> None:
    """Two living workers on one endpoint took the place from each other for ever, and each time dropped the cache."""
    quick = msgspec.structs.replace(settings.ipc, heartbeat_timeout_s=1.0)
    start(msgspec.structs.replace(settings, ipc=quick))
    gateway, worker, spare = new_gateway(), new_worker(), new_worker(epoch=8, name=b"spare")
    worker.join()
    spare.greet()
    gateway.greet()
    gateway.send(front.LoadQuery(1))
    assert gateway.receive(front.LoadReply).load.worker_epoch == 7
    while gateway.receive(front.ReplicaBeat).load.worker_epoch != 8:
        gateway.send(front.GatewayBeat(gateway.epoch))
        spare.greet()
    assert isinstance(spare.receive(), device.SchedulerGreeting)
