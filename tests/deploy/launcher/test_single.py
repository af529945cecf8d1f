"""`chairlift supervise`: one process kept running, as in a container of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chairlift.runtime.addresses import Address, AddressError
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.settings import Settings
from deploy.launcher.kinds import MODULES
from deploy.launcher.probe import ask_excused_losses
from deploy.launcher.single import plan_single, scheduler_probe
from scheduler_svc.metrics import SchedulerMetrics


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_the_process_gets_the_settings_and_its_port_is_watched(name: str, module: str) -> None:
    settings = Settings()
    section = msgspec.structs.replace(getattr(settings, name), metrics_listen="0.0.0.0:9999")
    spec = plan_single(name, msgspec.structs.replace(settings, **{name: section}))
    launch = spec.prepare()
    assert launch.argv[1:3] == ("-m", module)
    assert f"{name}.metrics_listen=0.0.0.0:9999" in launch.argv
    assert str(launch.probe) == "127.0.0.1:9999"
    drain_s = getattr(section, "drain_timeout_s", 0.0)
    assert spec.stop_timeout_s == drain_s + settings.supervisor.stop_timeout_s


def test_a_process_that_cannot_be_watched_is_refused() -> None:
    settings = Settings()
    own = msgspec.structs.replace(settings.worker, metrics_listen="")
    with pytest.raises(AddressError, match=r"worker\.metrics_listen is empty"):
        plan_single("worker", msgspec.structs.replace(settings, worker=own))


@pytest.mark.parametrize(
    ("endpoint", "listen", "probe"),
    [
        (None, "0.0.0.0:9470", "127.0.0.1:9470"),
        ("tcp://scheduler:5571", "127.0.0.1:9470", "scheduler:9470"),
        ("tcp://[fd00::1]:5571", "0.0.0.0:9471", "[fd00::1]:9471"),
        ("tcp://127.0.0.1:5571", "", "None"),
    ],
)
def test_a_worker_finds_the_scheduler_that_knows_whose_fault_its_end_was(
    endpoint: str | None, listen: str, probe: str
) -> None:
    settings = msgspec.structs.replace(
        Settings(),
        ipc=msgspec.structs.replace(Settings().ipc, worker_endpoint=endpoint),
        scheduler=msgspec.structs.replace(Settings().scheduler, metrics_listen=listen),
    )
    assert str(scheduler_probe(settings)) == probe
    assert (plan_single("worker", settings).count_excused is None) == (probe == "None")
    assert plan_single("gateway", settings).count_excused is None


async def test_a_scheduler_says_how_many_ends_were_a_requests_fault() -> None:
    metrics = SchedulerMetrics()
    server = ProbeServer("127.0.0.1:0", ProcessState(), metrics.exposition)
    try:
        assert await ask_excused_losses(Address("127.0.0.1", server.port), timeout_s=10.0) == 0
    finally:
        server.close()
        metrics.close()


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        ("# TYPE x counter\nchairlift_scheduler_worker_losses_excused_total 3.0\n", 3),
        ("chairlift_scheduler_worker_losses_excused_total 3.0", None),
        ("chairlift_scheduler_worker_losses_total 3.0\n", None),
    ],
)
async def test_no_answer_is_not_the_answer_that_there_were_none(metrics: str, count: int | None) -> None:
    """Taken for 0, it would let the deaths that were excused before count as new ones."""
    server = ProbeServer("127.0.0.1:0", ProcessState(), lambda: metrics)
    address = Address("127.0.0.1", server.port)
    try:
        assert await ask_excused_losses(address) == count
    finally:
        server.close()
    assert await ask_excused_losses(address, timeout_s=5.0) is None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A scheduler below its supervisor, and its HTTP port."""
    port = _free_port()
    command = [sys.executable, "-m", "deploy.cli", "supervise", "scheduler"]
    for setting in (f"ipc.run_dir={tmp_path / 'run'}", f"scheduler.metrics_listen=127.0.0.1:{port}"):
        command += ["--set", setting]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process, port
    if process.poll() is None:
        process.kill()
        process.wait()


def _is_live(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _child(process: "subprocess.Popen[bytes]") -> int | None:
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pids[0]) if pids else None


@pytest.mark.skipif(sys.platform != "linux", reason="finds children by Linux's /proc")
def test_a_process_that_dies_is_started_again_and_a_signal_drains(
    supervised: tuple["subprocess.Popen[bytes]", int],
) -> None:
    process, port = supervised
    deadline = time.monotonic() + 60
    while not _is_live(port):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first = _child(process)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    while _child(process) in (first, None) or not _is_live(port):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not _is_live(port)
