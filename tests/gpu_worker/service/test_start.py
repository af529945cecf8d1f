"""Starting the process: what is wrong is said in one line, with an exit code, before a port is opened."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from chairlift.ipc import device
from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import Settings
from gpu_worker.__main__ import main
from gpu_worker.threads import ThreadPlan, core_processors, plan_threads, prepare_openmp, usable_cores


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What starting changes in a process is put back."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    yield
    torch.set_num_threads(1)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a port was opened")

    monkeypatch.setattr("gpu_worker.service.ProbeServer", refuse)


def arguments(settings: Settings, *overrides: str) -> list[str]:
    base = (
        f"model.source={settings.model.source}",
        f"ipc.run_dir={settings.ipc.run_dir}",
        "scheduler.max_num_seqs=4",
        "scheduler.max_num_batched_tokens=48",
        "worker.kv_cache_bytes=1000000",
        "worker.metrics_listen=127.0.0.1:0",
        "worker.num_threads=1",
        "telemetry.log_format=json",
    )
    return [part for override in (*base, *overrides) for part in ("--set", override)]


def pickled(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "pytorch_model.bin"


def truncated(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    return "model.safetensors"


def gone(folder: Path) -> str:
    shutil.rmtree(folder)
    return folder.name


def alien(folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"qwen2"', '"mamba"'))
    return "mamba"


@pytest.mark.parametrize("spoil", [pickled, truncated, gone, alien])
def test_models_that_cannot_be_served(
    spoil: Any, worker_settings: Settings, tmp_path: Path, no_ports: None, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(worker_settings.model.source, folder)
    word = spoil(folder)
    assert main(arguments(worker_settings, f"model.source={folder}")) == ExitCode.MODEL
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("worker.device=cuda", "no CUDA device"),
        ("model.max_model_len=513", "512"),
        ("scheduler.max_num_batched_tokens=3", "max_num_batched_tokens"),
        ("ipc.worker_endpoint=tcp://192.0.2.1:9000", "plaintext"),
    ],
)
def test_settings_that_cannot_be_used(
    override: str, word: str, worker_settings: Settings, no_ports: None, capfd: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available() and "cuda" in override:
        pytest.skip("this machine has a CUDA device")
    assert main(arguments(worker_settings, override)) == ExitCode.USAGE
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0]


def test_a_mistyped_key_is_refused_with_its_path(worker_settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments(worker_settings, "worker.num_thread=2"))
    assert ended.value.code == ExitCode.USAGE
    assert "worker.num_thread" in capfd.readouterr().err


def test_a_cache_without_a_block(worker_settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(worker_settings, "worker.kv_cache_bytes=10000")) == ExitCode.MODEL
    assert "10000 bytes for the KV cache hold no block" in capfd.readouterr().err


def test_the_process_serves_and_ends_on_sigterm(worker_settings: Settings, new_scheduler: Any) -> None:
    scheduler = new_scheduler()
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_worker", *arguments(worker_settings)],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        hello = scheduler.greet()
        assert hello.pid == process.pid
        scheduler.send(device.Plan(hello.worker_epoch, 1, True))
        assert scheduler.receive(device.StepDone).step == 1
        process.send_signal(signal.SIGTERM)
        scheduler.receive(device.WorkerBye)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == ExitCode.OK
    assert '"kv_cache_ready"' in errors
    assert '"torch_threads": 1' in errors


def test_threads_are_chosen_before_openmp_reads_them(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    prepare_openmp(environ, 3)
    assert environ == {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "2000"}
    chosen = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "active"}
    prepare_openmp(chosen, 3)
    assert chosen == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "active"}


def test_cores_under_a_quota(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    base.mkdir(parents=True)
    assert usable_cores(tmp_path) >= 1
    (base / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 1
    (base / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == usable_cores(Path("/nonexistent"))


@pytest.fixture
def eight_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two processors each, numbered as on most servers: 0 and 4 are one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for processor in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{processor}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{processor % 4},{processor % 4 + 4}\n")
    return tmp_path


def test_a_thread_a_physical_core(eight_processors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned, since the other four processors are for whoever else has work."""
    assert plan_threads(None, 50, None, eight_processors) == ThreadPlan(4, 50, (0, 1, 2, 3))
    assert plan_threads(None, 50, False, eight_processors) == ThreadPlan(4, 50, ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 6, 7})
    assert core_processors(eight_processors) == [2, 7]
    assert plan_threads(None, 50, None, eight_processors) == ThreadPlan(2, 50, ()), "one is left, of two"
    assert plan_threads(None, 50, True, eight_processors) == ThreadPlan(2, 50, (2, 7))


def test_threads_that_are_asked_for(eight_processors: Path) -> None:
    assert plan_threads(3, 0, None, eight_processors) == ThreadPlan(3, 0, (0, 1, 2))
    assert plan_threads(8, 0, True, eight_processors) == ThreadPlan(8, 0, ()), "more than there are cores to pin to"
    quota = eight_processors / "sys/fs/cgroup"
    quota.mkdir(parents=True)
    (quota / "cpu.max").write_text("200000 100000\n")
    assert plan_threads(None, 50, None, eight_processors) == ThreadPlan(2, 50, ())


def test_a_machine_that_does_not_tell_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert plan_threads(None, 50, None, tmp_path) == ThreadPlan(2, 50, ())
