"""The worker process's loop against a scheduler that is only a socket."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import zmq

from chairlift.ipc import device
from chairlift.ipc.common import HelloRefused, HelloWanted, Reason, SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32
from chairlift.runtime.probes import ProcessState
from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import IpcSettings
from gpu_worker.heartbeat import Heartbeat, Progress, StepInWork, patience_ns

PROMPT = [5, 9, 14, 3]


def snapshot(epoch: int, step: int = 1) -> device.Plan:
    row = device.BoardedRow(0, pack_u32(PROMPT), 4, 0, pack_u32([2]), 0, SamplingParams(temperature=0))
    return device.Plan(epoch, step, True, boarded=(row,), chunks=pack_u32([0, 4]))


def decode(epoch: int, step: int) -> device.Plan:
    return device.Plan(epoch, step, decode=pack_u32([0]))


def probe(worker: Any, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.service.probe_port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_life(new_scheduler: Any, new_worker: Any, until: Any, greedy: Any) -> None:
    """Hello, two plans in flight, results in order, beats with progress, goodbye.

    Without a step it is the main loop that beats; a thread beside it would wake for nothing.
    """
    worker = new_worker()
    until(lambda: probe(worker, "/readyz") == (503, "waiting for the scheduler\n"), "loaded, and nobody there")
    assert probe(worker, "/livez")[0] == 200
    scheduler = new_scheduler()
    hello = scheduler.greet()
    geometry = hello.geometry
    assert (geometry.max_num_seqs, geometry.max_num_batched_tokens, geometry.block_size) == (4, 48, 8)
    assert (geometry.max_model_len, geometry.vocab_size, geometry.dtype) == (512, 199, "float32")
    assert geometry.num_blocks == (1 << 20) // (geometry.kv_bytes_per_token * 8) - 1
    assert len(geometry.fingerprint) == 16
    until(lambda: probe(worker, "/readyz")[0] == 200, "ready after the greeting")
    epoch = hello.worker_epoch
    for plan in (snapshot(epoch), decode(epoch, 2)):
        scheduler.send(plan)
    results = [scheduler.receive(device.StepDone) for _ in range(2)]
    assert [result.step for result in results] == [1, 2]
    assert [token for result in results for token in unpack_u32(result.sampled)] == greedy(PROMPT, 2)
    until(lambda: scheduler.receive(device.WorkerBeat).last_step == 2, "a beat that shows the step")
    for _ in range(6):
        scheduler.send(device.SchedulerBeat(9))
        beat = scheduler.receive(device.WorkerBeat, skipping=())
        assert (beat.worker_epoch, beat.last_step, beat.busy_ns) == (epoch, 2, 0)
    assert {who for who, _ in scheduler.received[-3:]} == {scheduler.worker}
    worker.stop.request()
    assert scheduler.receive(device.WorkerBye).worker_epoch == epoch
    assert worker.join() == ExitCode.OK


def test_bad_frames_and_bad_plans_end_nothing(new_scheduler: Any, new_worker: Any, greedy: Any) -> None:
    worker, scheduler = new_worker(), new_scheduler()
    epoch = scheduler.greet().worker_epoch
    for frames in ((b"",), (b"\xff\x00garbage",), (b"one", b"two")):
        scheduler.send_raw(*frames)
    scheduler.send(device.Plan(epoch, 1, True, decode=pack_u32([3])))
    failed = scheduler.receive(device.StepFailed)
    assert (failed.step, failed.kind) == (1, "invalid_plan")
    scheduler.send(decode(epoch, 7))
    assert scheduler.receive(device.NeedSnapshot).worker_epoch == epoch
    scheduler.send(decode(epoch + 2, 8))
    scheduler.send(snapshot(epoch, 9))
    assert list(unpack_u32(scheduler.receive(device.StepDone).sampled)) == greedy(PROMPT, 1)
    assert worker.engine.runner.counters.foreign == 1


def test_a_new_scheduler_is_greeted_at_once_and_once(new_scheduler: Any, new_worker: Any) -> None:
    """The end of the connection is noticed without a time-out; a late beat may make the successor ask as well."""
    new_worker(heartbeat_timeout_s=30.0)
    first = new_scheduler()
    hello = first.greet()
    first.send(snapshot(hello.worker_epoch))
    first.receive(device.StepDone)
    first.close()
    second = new_scheduler(epoch=10)
    again = second.receive(device.WorkerHello)
    for _ in range(3):
        second.send(HelloWanted(10))
    second.welcome()
    assert again.worker_epoch == hello.worker_epoch
    second.send(snapshot(hello.worker_epoch))
    second.receive(device.StepDone)
    assert sum(isinstance(message, device.WorkerHello) for _, message in second.received) == 1


def test_an_unanswered_hello_is_repeated(new_scheduler: Any, new_worker: Any) -> None:
    new_worker(heartbeat_timeout_s=0.2)
    scheduler = new_scheduler()
    first = scheduler.receive(device.WorkerHello)
    assert scheduler.receive(device.WorkerHello).worker_epoch == first.worker_epoch


def test_readiness_follows_the_scheduler(new_scheduler: Any, new_worker: Any, until: Any) -> None:
    """A scheduler that falls silent takes readiness with it, and liveness not."""
    worker, scheduler = new_worker(heartbeat_timeout_s=0.3), new_scheduler()
    scheduler.greet()
    until(lambda: probe(worker, "/readyz")[0] == 200, "ready")
    until(lambda: probe(worker, "/readyz")[0] == 503, "not ready once the scheduler is silent")
    assert probe(worker, "/livez")[0] == 200
    scheduler.send(device.SchedulerBeat(9))
    until(lambda: probe(worker, "/readyz")[0] == 200, "ready again")


def test_a_scheduler_that_rests_is_heard(new_scheduler: Any, new_worker: Any, until: Any) -> None:
    """It says so, and nobody waits for its beats or beats unasked meanwhile; a result that is sent ends that."""
    worker, scheduler = new_worker(heartbeat_timeout_s=0.3), new_scheduler()
    scheduler.greet()
    until(lambda: probe(worker, "/readyz")[0] == 503, "not ready once the scheduler is silent")
    scheduler.send(device.SchedulerBeat(9, 60_000_000_000))
    until(lambda: probe(worker, "/readyz")[0] == 200, "ready again")
    until(lambda: scheduler.hears_nothing(for_ms=600), "twice the time-out without a beat")
    assert probe(worker, "/readyz")[0] == 200
    scheduler.send(snapshot(worker.service._epoch))
    scheduler.receive(device.StepDone)
    until(lambda: probe(worker, "/readyz")[0] == 503, "silent")


def test_refusal_ends_the_process_loudly(
    new_scheduler: Any, new_worker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, scheduler = new_worker(), new_scheduler()
    scheduler.receive(device.WorkerHello)
    scheduler.send(HelloRefused(Reason.GEOMETRY_MISMATCH, "rank 0 differs in block_size"))
    assert worker.join() == ExitCode.USAGE
    assert "rank 0 differs in block_size" in capsys.readouterr().out


def test_each_step_in_flight_has_its_own_patience() -> None:
    """A small step behind a large one must not take the large one's time from it, nor give the small one more."""
    progress = Progress()
    progress.began(100)
    progress.began(10)
    assert progress.in_work is not None
    assert progress.in_work.patience_ns == 100
    since_ns = time.monotonic_ns() - 5_000_000
    progress.ended(since_ns)
    assert progress.in_work == StepInWork(since_ns, 10)
    assert progress.in_work.busy_ns() >= 5_000_000
    progress.ended(None)
    assert progress.in_work is None


def test_a_step_that_takes_long_but_may_is_no_hang(tmp_path: Path, until: Any) -> None:
    """Its process is live for as long as the heartbeat has patience, and not a moment longer without one."""
    settings, progress = IpcSettings(heartbeat_interval_s=0.01), Progress()
    ages_s: list[float] = []
    state = ProcessState(stale_after_s=1.0, clock=lambda: sum(ages_s))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    heartbeat = Heartbeat(context, f"ipc://{tmp_path}/w.sock", settings, b"w", 7, progress, state)
    try:
        ages_s.append(5.0)
        assert not state.live()[0]
        progress.began(patience_ns(0, 0, min_s=600.0))
        until(lambda: state.live()[0], "the heartbeat's word")
    finally:
        heartbeat.close()
        context.destroy(linger=0)
    ages_s.append(5.0)
    assert not state.live()[0]


@pytest.fixture
def greedy(twins: Any) -> Any:
    def generate(prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(twins("qwen2").reference_logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    return generate


def test_a_stuck_step_ends_the_process(tmp_path: Path) -> None:
    """Its main thread never comes back: the heartbeat's thread ends it, and says why."""
    script = tmp_path / "stuck.py"
    script.write_text(
        "import time, zmq\n"
        "from chairlift.runtime.settings import IpcSettings\n"
        "from chairlift.runtime.probes import ProcessState\n"
        "from gpu_worker.heartbeat import Heartbeat, Progress, patience_ns\n"
        "progress = Progress()\n"
        f"endpoint, settings = 'ipc://{tmp_path}/w.sock', IpcSettings(heartbeat_interval_s=0.05)\n"
        "heartbeat = Heartbeat(zmq.Context(), endpoint, settings, b'w', 7, progress, ProcessState())\n"
        "progress.began(patience_ns(0, 1_000_000, min_s=0.3))\n"
        "time.sleep(600)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.FAILED
    assert "step_stuck" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("expected_s", "largest_s", "patience_s"), [(0.001, 60, 10), (2, 1, 20), (0, 0.1, 10), (0, 3, 30)]
)
def test_patience_is_ten_times_what_a_step_should_take(expected_s: float, largest_s: float, patience_s: float) -> None:
    """Before the scheduler can tell, what the largest step took at the start says it: a first step may be stuck too."""
    found = patience_ns(round(expected_s * 1e9), round(largest_s * 1e9), min_s=10.0)
    assert found == round(patience_s * 1e9)
