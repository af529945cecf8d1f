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

from chairlift.runtime.addresses import AddressError
from chairlift.runtime.settings import Settings
from deploy.launcher.single import MODULES, plan_single


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
