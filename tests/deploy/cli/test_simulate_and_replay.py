"""`chairlift simulate` and `chairlift replay`, as they are typed: figures, files, exit codes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from deploy.cli import main
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.core.frames import Frame, Header, pack, read_frames, read_header
from scheduler_svc.core.recording import RecordedCore
from scheduler_svc.sim.counting_device import CountingDevice

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{at // 10:02d}.{at % 10}680590,{100 + 7 * at},{1 + at % 40}\n" for at in range(200)
)
COST = {"fixed_us": 4000, "decode_row_us": 50, "prefill_token_us": 40, "num_blocks": 200, "max_num_seqs": 32}


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    return str(path)


@pytest.fixture
def cost(tmp_path: Path) -> str:
    path = tmp_path / "cost.json"
    path.write_bytes(msgspec.json.encode(COST))
    return str(path)


def test_a_trace_under_two_settings(capsys: pytest.CaptureFixture[str], trace: str, cost: str) -> None:
    simulate = ("simulate", "--trace", trace, "--model-cost", cost)
    one = figures(capsys, *simulate)
    assert one["requests"] == 200
    assert {"ttft_ms", "itl_ms", "queue_ms", "goodput_per_s", "preemptions", "kv_peak", "fairness"} <= set(one)
    faster = figures(capsys, *simulate, "--rate-scale", "4")
    assert faster["duration_s"] < one["duration_s"]
    assert faster["ttft_ms"]["p99"] > one["ttft_ms"]["p99"]
    static = figures(capsys, *simulate, "--rate-scale", "4", "--set", "scheduler.batching=static")
    assert static["queue_ms"]["mean"] > faster["queue_ms"]["mean"]


@pytest.mark.parametrize("source", ["poisson", "burst"])
def test_drawn_arrivals_tables_and_plots(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cost: str, source: str
) -> None:
    page, plots = tmp_path / "page.html", tmp_path / "plots"
    arguments = ["simulate", "--trace", source, "--num-requests", "60", "--tenants", "3", "--model-cost", cost]
    assert main([*arguments, "--lengths", "heavy", "--html", str(page), "--svg", str(plots)]) == 0
    text = capsys.readouterr().out
    assert "Time to first token" in text
    assert "tenant-3" in text
    assert "<svg" in page.read_text()
    assert {path.name for path in plots.iterdir()} == {"ttft.svg", "itl.svg", "running.svg", "waiting.svg", "kv.svg"}
    assert all(path.read_text().startswith("<svg") for path in plots.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trace", "no-such.csv"], "no-such.csv: No such file"),
        (["--trace", "trace.txt"], "a trace is a .csv file"),
        (["--rate", "1e-6"], "arrive for more than 31 days"),
        (["--rate", "0.001", "--num-requests", "20", "--flood", "1e6"], "the flood would be"),
        (["--svg", __file__, "--num-requests", "2"], "test_simulate_and_replay.py: File exists"),
        (["--set", 'scheduler.tenants=["a: weight=1", "a: weight=2"]'], "more than one rule for a"),
        (["--model-cost", "no-such.json"], "no-such.json: No such file"),
        (["--set", "scheduler.policy=fastest"], "scheduler.policy"),
        (["--set", "scheduler.itl_target_ms=5", "--set", "scheduler.enable_chunked_prefill=false"], "itl_target_ms"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--rate", "--rate-scale", "--flood"])
@pytest.mark.parametrize("value", ["inf", "1e9", "1e-300", "nan", "0"])
def test_a_rate_that_no_time_can_be_filled_with_is_refused(
    capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", flag, value])
    assert ended.value.code == 2
    assert "expected a number from 1e-6 to 1e6" in capsys.readouterr().err


def test_a_cost_beyond_reason_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"decode_row_us": 1e30}')
    assert main(["simulate", "--model-cost", str(path)]) == 2
    assert "decode_row_us" in capsys.readouterr().err


def test_a_study_of_what_is_no_text_is_told_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(AZURE.encode() + b"\xff\xfe\n")
    assert main(["bench", "study", "--trace", str(trace), "--output", str(tmp_path / "report")]) == 2
    error = capsys.readouterr().err
    assert str(trace) in error
    assert error.count("\n") == 1


def test_a_cost_file_with_an_unknown_key_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"fixed_ms": 3}')
    assert main(["simulate", "--model-cost", str(path)]) == 2
    assert "fixed_ms" in capsys.readouterr().err


# ---- recordings ----


def record(path: Path, num_requests: int = 60) -> None:
    geometry = device.Geometry("m", "f", 1000, 512, (2,), 16, 400, 0, 8, 256, 4, "float32")
    with path.open("wb") as file:
        recorded = RecordedCore(SchedulingConfig(), b"key", 1, file.write, name_key=b"names")
        file.write(recorded.header("test"))
        worker, plans, now = CountingDevice(1), list[device.Plan](), 0
        recorded.handle(events.WorkerUp(1, geometry), now)
        while now < num_requests or recorded.core.load().running or recorded.core.load().waiting:
            now += 1
            if now <= num_requests:
                tenant = "quiet" if now % 15 == 0 else "flood"
                prompt, sampling = pack_u32([*range(40), now]), SamplingParams(ignore_eos=True)
                submit = front.Submit(256 * now, tenant, str(now), bytes(16), prompt, sampling, max_tokens=30)
                recorded.handle(events.Submit(1, submit), 10_000_000 * now)
            if plans:
                done = msgspec.structs.replace(worker.execute(plans.pop(0)), device_ns=9_000_000)
                recorded.handle(events.StepDone(done), 10_000_000 * now)
            for effect in recorded.handle(events.Tick(), 10_000_000 * now):
                if isinstance(effect, SendPlan):
                    plans.append(effect.plan)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "1-000001.chairlift-record"
    record(path)
    return path


def test_a_recording_replays(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    result = figures(capsys, "replay", str(recording))
    assert result["difference"] is None
    assert result["num_plans"] > 60
    assert main(["replay", str(recording)]) == 0
    assert "every one as it was made then" in capsys.readouterr().out


def test_a_torn_tail_is_told_and_damage_is_an_error(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    content = recording.read_bytes()
    recording.write_bytes(content[:-3])
    assert main(["replay", str(recording)]) == 0
    assert "ends in the middle of a frame at byte" in capsys.readouterr().err
    with recording.open("rb") as file:
        read_header(file)
        next(read_frames(file))
        at = file.tell()
    damaged = bytearray(content)
    damaged[at + 2] ^= 1
    recording.write_bytes(damaged)
    assert main(["replay", str(recording)]) == 2
    assert f"the frame at byte {at} is damaged" in capsys.readouterr().err
    recording.write_bytes(content[:at])
    assert main(["replay", str(recording)]) == 1
    assert "no plan" in capsys.readouterr().out


def test_the_first_difference_is_pointed_at(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    with recording.open("rb") as file:
        header, frames = read_header(file), list(read_frames(file))
    at = next(number for number, frame in enumerate(frames) if number > 100 and frame.plans)
    wrong: Frame = msgspec.structs.replace(frames[at], plans=bytes(8))
    parts: list[Header | Frame] = [header, *frames[:at], wrong, *frames[at + 1 :]]
    recording.write_bytes(b"".join(map(pack, parts)))
    assert main(["replay", str(recording)]) == 1
    text = capsys.readouterr().out
    assert f"event {at + 1} (Tick) took another course" in text
    assert "recorded  " + "0" * 16 in text


def test_other_knobs_are_compared_on_the_recorded_arrivals(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    compared = figures(capsys, "replay", str(recording), "--with", "policy=fair", "--with", "max_num_seqs=4")
    assert compared["recorded"]["requests"] == compared["changed"]["requests"] == 60
    assert compared["recorded"] != compared["changed"]
    assert main(["replay", str(recording), "--with", "policy=fair"]) == 0
    text = capsys.readouterr().out
    assert "policy=fair" in text
    assert "Time to first token, p99" in text


def test_what_a_recorded_scheduler_had_learnt_is_a_model_cost(
    capsys: pytest.CaptureFixture[str], recording: Path
) -> None:
    report = figures(
        capsys, "simulate", "--model-cost", str(recording), "--num-requests", "20", "--lengths", "heavy", "--rate", "1"
    )
    assert report["requests"] + report["refused"] == 20
    # Nine milliseconds a step were recorded.
    assert 8 < report["itl_ms"]["p50"] < 10


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["policy=fastest"], "scheduler.policy"),
        (["no_such_knob=1"], "no_such_knob"),
        (["replica_id=x"], "is no knob of the scheduling"),
        (["itl_target_ms=5", "enable_chunked_prefill=false"], "needs enable_chunked_prefill"),
    ],
)
def test_what_is_no_knob_is_told(
    capsys: pytest.CaptureFixture[str], recording: Path, changes: list[str], told: str
) -> None:
    flags = [part for change in changes for part in ("--with", change)]
    assert main(["replay", str(recording), *flags]) == 2
    assert told in capsys.readouterr().err


def test_what_is_no_recording_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"nonsense that is long enough to have a length and a checksum")
    assert main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none")]) == 2
