"""Recordings on disk: who may read them, how they are bounded, and that a bad disk ends no process."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.ipc import device, front
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.core.frames import read_frames, read_header
from scheduler_svc.record import Recorder, RecordingFolder
from scheduler_svc.sim.counting_device import CountingDevice
from scheduler_svc.sim.replay import replay

MS = 1_000_000
GEOMETRY = device.Geometry("m", "f", 1000, 256, (2,), 16, 200, 0, 8, 64, 4, "float32")


def make_recorder(folder: Path, config: SchedulingConfig | None = None, **settings: Any) -> Recorder:
    return Recorder(SchedulerSettings(record=str(folder), **settings), config or SchedulingConfig(), b"key", 7)


def run(recorder: Recorder, num_requests: int, tenant: str = "tenant-name") -> None:
    worker, now = CountingDevice(1), 1000 * MS
    recorder.handle(events.WorkerUp(1, GEOMETRY), now)
    for number in range(1, num_requests + 1):
        prompt = pack_u32(range(number % 30 + 1))
        submit = front.Submit(256 * number, tenant, f"request-{number}", bytes(16), prompt, max_tokens=20)
        effects = recorder.handle(events.Submit(1, submit), now)
        effects += recorder.handle(events.Tick(), now)
        plans = [effect.plan for effect in effects if isinstance(effect, SendPlan)]
        while plans:
            now += MS
            done = worker.execute(plans.pop(0))
            effects = recorder.handle(events.StepDone(msgspec.structs.replace(done, device_ns=MS)), now)
            effects += recorder.handle(events.Tick(), now)
            plans += [effect.plan for effect in effects if isinstance(effect, SendPlan)]
        recorder.turned(now)


def test_only_the_owner_may_read_a_recording_and_it_replays(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    recorder = make_recorder(folder)
    run(recorder, 20)
    recorder.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"tenant-name" not in path.read_bytes()
    with path.open("rb") as file:
        result = replay(read_header(file), read_frames(file))
    assert result.difference is None
    assert result.num_plans > 50


def test_the_size_is_bounded_and_what_is_left_replays(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, SchedulingConfig(max_ended_requests_kept=5), record_max_bytes=200_000)
    run(recorder, 300)
    recorder.close()
    files = sorted(tmp_path.iterdir())
    assert sum(path.stat().st_size for path in files) <= 200_000
    assert len(files) > 1
    assert not files[0].name.endswith("-000001.chairlift-record")
    for path in files:
        with path.open("rb") as file:
            assert replay(read_header(file), read_frames(file)).difference is None


def test_old_recordings_go_also_those_of_earlier_lives(tmp_path: Path) -> None:
    old, other = tmp_path / "3-000001.chairlift-record", tmp_path / "notes.txt"
    for path in (old, other):
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    folder = RecordingFolder(tmp_path, 8, 1 << 20, max_age_s=3600.0)
    folder.begin(b"header")
    folder.close()
    assert not old.exists()
    assert other.exists(), "what is no recording is nobody's to remove"


def test_a_file_begins_anew_with_age(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, record_max_age_s=0.8)
    run(recorder, 20)
    recorder.close()
    assert len(list(tmp_path.iterdir())) >= 3


def test_a_full_disk_ends_the_recording_and_not_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = make_recorder(tmp_path)

    def full(frame: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._folder, "write", full)
    run(recorder, 10)
    assert recorder.core.load().requests_ended == 10
    recorder.close()


def test_a_folder_that_cannot_be_made_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_recorder(tmp_path / "file" / "records")
