"""A recording replays to identical plans, holds nothing that a user wrote, and survives a torn tail."""

import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scheduler_svc.core import events, invariants
from scheduler_svc.core.checkpoint import CheckpointError, load_state
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.frames import FORMAT, Frame, Header, RecordError, TornTail, pack, read_frames, read_header
from scheduler_svc.core.hash_source import RecordedHashes
from scheduler_svc.sim.replay import ReplayResult, replay

_RUN = Path(__file__).with_name("pure_run.py")
_NUM_ROUNDS = 4000


_REPLAY = """
import sys
from scheduler_svc.core.frames import read_frames, read_header
from scheduler_svc.sim.replay import replay
with open(sys.argv[1], "rb") as file:
    result = replay(read_header(file), read_frames(file))
print(result.num_events, result.num_plans, result.difference)
"""


def record(path: Path, mode: str, num_rounds: int = _NUM_ROUNDS, every: int = 0, life: int = 5) -> list[int]:
    environment = {**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(_RUN), str(num_rounds), str(path), mode, str(every or num_rounds), str(life)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [int(count) for count in done.stdout.split()[1:]]


def replay_file(path: Path) -> ReplayResult:
    with path.open("rb") as file:
        return replay(read_header(file), read_frames(file))


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("recordings") / "redacted"
    return path, record(path, "redacted")[0]


def test_ten_thousand_events_replay_to_the_same_plans_without_any_token(redacted: tuple[Path, int]) -> None:
    """Recorded in a process with one hash seed, replayed in another."""
    path, num_events = redacted
    assert num_events > 10_000
    result = replay_file(path)
    assert result.difference is None
    assert result.num_events == num_events
    assert result.num_plans > 1000


@pytest.mark.parametrize("life", [11, 12])
def test_any_life_replays_to_the_same_plans_under_two_hash_seeds(tmp_path: Path, life: int) -> None:
    path = tmp_path / "r"
    num_events, _ = record(path, "redacted", life=life)
    assert num_events > 10_000
    told = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _REPLAY, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        told.add(done.stdout.strip())
    assert len(told) == 1
    events, plans, difference = told.pop().split()
    assert (int(events), difference) == (num_events, "None")
    assert int(plans) > 1000


def test_with_tokens_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    num_events, _ = record(path, "tokens", num_rounds=1000)
    assert replay_file(path).num_events == num_events
    assert replay_file(path).difference is None


def test_recording_changes_nothing_of_what_the_core_does(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    plain = subprocess.run(
        [sys.executable, str(_RUN), "500"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    command = [sys.executable, str(_RUN), "500", str(tmp_path / "r"), "redacted"]
    recorded = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert plain == recorded


def test_a_replay_keeps_the_invariants(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, "redacted", num_rounds=300)
    with path.open("rb") as file:
        assert replay(read_header(file), read_frames(file), invariants.check).difference is None


def test_a_recording_holds_nothing_that_a_user_wrote_or_was_told(redacted: tuple[Path, int]) -> None:
    content = redacted[0].read_bytes()
    for secret in (b"SECRET", b"private", b"t1:"):
        assert secret not in content
    with redacted[0].open("rb") as file:
        header = read_header(file)
        assert header.hash_key == b""
        for frame in read_frames(file):
            encoded = msgspec.msgpack.encode(frame.event)
            # Tenants t0 to t3 and requests r0 to r39, as msgpack strings of two and three characters.
            assert not any(b"\xa2" + name.encode() in encoded for name in ("t0", "t1", "t2", "t3", "r7"))


def test_the_first_difference_is_pointed_at(redacted: tuple[Path, int]) -> None:
    with redacted[0].open("rb") as file:
        header, frames = read_header(file), list(read_frames(file))
    at = next(number for number, frame in enumerate(frames) if number > 2000 and frame.plans)
    wrong = msgspec.structs.replace(frames[at], plans=bytes(8))
    result = replay(header, iter([*frames[:at], wrong, *frames[at + 1 :]]))
    assert result.difference is not None
    assert result.difference.event_number == at + 1
    assert result.difference.recorded == ("0" * 16,)
    assert result.difference.plans[0].startswith("step ")


def test_other_knobs_give_another_course(redacted: tuple[Path, int]) -> None:
    with redacted[0].open("rb") as file:
        header = read_header(file)
        header = msgspec.structs.replace(header, config=msgspec.structs.replace(header.config, max_num_seqs=1))
        assert replay(header, read_frames(file)).difference is not None


# ---- recordings that begin in the middle of a life ----


@pytest.mark.parametrize("mode", ["redacted", "tokens"])
def test_each_file_of_a_rotated_recording_replays_by_itself(tmp_path: Path, mode: str) -> None:
    """The state is written at its beginning: requests, blocks, plans in flight, timers, what was learnt."""
    num_events, _ = record(tmp_path / "r", mode, num_rounds=1300, every=53)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 25
    results = [replay_file(path) for path in files]
    assert [result.difference for result in results] == [None] * 25
    assert sum(result.num_events for result in results) == num_events
    content = b"".join(path.read_bytes() for path in files)
    assert (b"SECRET" in content) == (mode == "tokens")


def test_a_checkpoint_restores_a_sound_state(tmp_path: Path) -> None:
    record(tmp_path / "r", "tokens", num_rounds=400, every=80)
    for path in tmp_path.iterdir():
        with path.open("rb") as file:
            assert replay(read_header(file), read_frames(file), invariants.check).difference is None


@pytest.mark.parametrize("packed", [b"", b"\xc1", msgspec.msgpack.encode([[0], [["object", "Evil", []]], {}])])
def test_what_is_no_checkpoint_is_told(packed: bytes) -> None:
    with pytest.raises(CheckpointError):
        load_state(packed, lambda block_size: RecordedHashes({}, block_size))


# ---- the form of the file ----


def small_recording(num_frames: int = 6) -> bytes:
    header = Header(FORMAT, SchedulingConfig(), 1, False, b"", "0")
    return pack(header) + b"".join(pack(Frame(now, events.Tick(), bytes(8 * now))) for now in range(num_frames))


def frames_of(content: bytes) -> tuple[list[Frame], list[TornTail]]:
    file, torn = io.BytesIO(content), list[TornTail]()
    read_header(file)
    return list(read_frames(file, torn.append)), torn


def test_a_file_cut_anywhere_is_read_up_to_there_and_what_is_left_out_is_told() -> None:
    content = small_recording()
    whole, _ = frames_of(content)
    borders = [len(small_recording(count)) for count in range(len(whole) + 1)]
    for cut in range(borders[0], len(content) + 1):
        frames, torn = frames_of(content[:cut])
        at = max(border for border in borders if border <= cut)
        assert frames == whole[: borders.index(at)]
        assert torn == ([] if cut == at else [TornTail(at, cut - at)])
    assert str(TornTail(7, 5)) == "ends in the middle of a frame at byte 7, the last 5 bytes are left out"


def test_a_bit_that_is_wrong_anywhere_is_damage_and_never_an_end() -> None:
    content = small_recording()
    for at in range(len(content)):
        for bit in (1, 0x80):
            damaged = bytearray(content)
            damaged[at] ^= bit
            with pytest.raises(RecordError, match="the frame at byte"):
                frames_of(bytes(damaged))


@pytest.mark.parametrize("content", [b"", b"not a recording", pack(Frame(1, None)), b"\xff" * 64])  # type: ignore[arg-type]
def test_what_is_no_recording_is_told(content: bytes) -> None:
    with pytest.raises(RecordError):
        read_header(io.BytesIO(content))


def test_another_format_is_told() -> None:
    header = Header(FORMAT + 1, SchedulingConfig(), 1, False, b"", "0")
    with pytest.raises(RecordError, match=f"format {FORMAT + 1}"):
        read_header(io.BytesIO(pack(header)))
