"""The units for bare machines: systemd takes them, and they leave a drain its time."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings
from deploy.launcher.child import can_restart_help

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "systemd"
UNITS = ("chairlift-scheduler.service", "chairlift-worker.service", "chairlift-gateway@.service")


def _unit(name: str, section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read(FOLDER / name)
    return parser[section]


@pytest.mark.parametrize("name", UNITS)
def test_a_service_is_supervised_and_may_do_no_more_than_it_needs(name: str) -> None:
    service = _unit(name)
    process = re.sub(r"chairlift-(\w+).*", r"\1", name)
    assert f"chairlift supervise {process} --config" in service["ExecStart"]
    assert service["User"] == "chairlift"
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["KillMode"]) == ("yes", "strict", "mixed")


def test_stopping_waits_for_the_drain() -> None:
    settings = Settings()
    stop_s = settings.supervisor.stop_timeout_s
    for name, drain_s in (
        (UNITS[0], settings.scheduler.drain_timeout_s),
        (UNITS[1], 0.0),
        (UNITS[2], settings.gateway.drain_timeout_s),
    ):
        assert float(_unit(name)["TimeoutStopSec"]) > drain_s + stop_s


@pytest.mark.parametrize("name", UNITS[1:])
def test_who_reads_the_model_has_a_place_to_keep_it(name: str) -> None:
    """Without the home folder, a gateway could not get the tokenizer of a model of the hub."""
    service = _unit(name)
    assert service["ProtectHome"] == "yes"
    assert service["Environment"] == f"XDG_CACHE_HOME=/var/cache/{service['CacheDirectory']}"


def test_streams_end_before_what_computes_them() -> None:
    """systemd stops in the reverse order of After: gateways, then the scheduler, then the worker."""
    scheduler, worker, gateway = (set(_unit(name, "Unit")["After"].split()) for name in UNITS)
    assert {UNITS[0], UNITS[1]} <= gateway
    assert UNITS[1] in scheduler
    assert UNITS[0] not in worker


@pytest.mark.parametrize("name", UNITS)
def test_what_a_restart_cannot_help_is_not_restarted_for_ever(name: str) -> None:
    kept_down = {int(code) for code in _unit(name)["RestartPreventExitStatus"].split()}
    assert kept_down == {code for code in ExitCode if code and not can_restart_help(code)}
    assert int(_unit(name, "Unit")["StartLimitBurst"]) > 0


def test_the_environment_file_holds_settings() -> None:
    lines = (FOLDER / "chairlift.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if line.startswith("CHAIRLIFT_"))
    assert load_settings(environ=environ).ipc.run_dir == "/run/chairlift"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for path in FOLDER.glob("chairlift*"):
        text = path.read_text().replace("/opt/chairlift/bin/chairlift", "/bin/echo")
        (tmp_path / path.name.replace("@.", "@0.")).write_text(text)
    names = sorted(str(path) for path in tmp_path.iterdir() if path.suffix in (".service", ".target"))
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "chairlift" not in done.stderr
