"""The compose files: what is pinned, private, read-only; and that compose itself loads them, where it is installed."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "compose"
FILES = ("compose.yaml", "compose.gpu.yaml", "compose.observability.yaml")
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(:-[^}]*)?\}")
_PROCESSES = ("gateway-a", "gateway-b", "scheduler", "worker")


def _pins() -> dict[str, str]:
    lines = (FOLDER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _load(name: str) -> dict[str, Any]:
    text = (FOLDER / name).read_text()
    pins = _pins()
    loaded: dict[str, Any] = yaml.safe_load(
        _VARIABLE.sub(lambda found: pins.get(found[1], (found[2] or ":-")[2:]), text)
    )
    return loaded


def _service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _load("compose.yaml")["services"][name]
    return found


def test_every_variable_has_a_value() -> None:
    pins = _pins()
    for name in FILES:
        unset = {found[0] for found in _VARIABLE.findall((FOLDER / name).read_text()) if not found[1]} - pins.keys()
        assert not unset, name


def test_every_image_is_pinned() -> None:
    images = [service["image"] for name in FILES for service in _load(name)["services"].values() if "image" in service]
    assert len(images) >= 9
    for image in [*images, _pins()["PYTHON_IMAGE"], _pins()["PYTHON_BUILD_IMAGE"]]:
        _, _, tag = image.rpartition(":")
        assert re.search(r"\d+\.\d+", tag), image
        assert "latest" not in image


@pytest.mark.parametrize("name", [*_PROCESSES, "init"])
def test_a_container_has_no_more_rights_than_it_needs(name: str) -> None:
    service = _service(name)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


def test_only_gateways_are_published_and_on_loopback() -> None:
    services = _load("compose.yaml")["services"]
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(ports) == {"gateway-a", "gateway-b"}
    assert ports == {"gateway-a": ["127.0.0.1:50051:50051"], "gateway-b": ["127.0.0.1:50061:50051"]}
    for name in ("scheduler", "worker"):
        assert services[name]["networks"] == ["links"]
    assert _load("compose.yaml")["networks"]["links"]["internal"] is True


def _settings(environ: Mapping[str, str]) -> Settings:
    return load_settings(environ={name: value for name, value in environ.items() if "__" in name})


def test_what_containers_are_told_are_settings_and_links_are_encrypted() -> None:
    for name in _PROCESSES:
        settings = _settings(_service(name)["environment"])
        assert settings.ipc.curve_secret_key_file == "/keys/secret.key"
        assert not settings.ipc.allow_plaintext
        keys = [mount for mount in _service(name)["volumes"] if mount.split(":")[1] == "/keys"]
        assert keys == [f"keys-{name.partition('-')[0]}:/keys:ro"], "its own keys and nobody else's"


def test_gpu_and_observability_change_what_there_is() -> None:
    base = _load("compose.yaml")["services"]
    assert set(_load("compose.gpu.yaml")["services"]) == {"worker"}
    watched = _load("compose.observability.yaml")["services"]
    assert set(_PROCESSES) <= set(watched)
    for name in set(watched) - set(base):
        assert "image" in watched[name]
    for service in watched.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert not source.startswith("..") or (FOLDER / source).exists(), source


def test_grace_is_longer_than_a_drain() -> None:
    for name in _PROCESSES:
        assert int(_service(name)["stop_grace_period"].removesuffix("s")) > 0
    settings = Settings()
    assert int(_service("gateway-a")["stop_grace_period"].removesuffix("s")) > settings.gateway.drain_timeout_s
    assert int(_service("scheduler")["stop_grace_period"].removesuffix("s")) > settings.scheduler.drain_timeout_s


def test_streams_end_before_what_computes_them() -> None:
    """Compose stops in the reverse order of dependence; and nobody may wait for the health of what needs him."""
    waits = {name: _service(name)["depends_on"] for name in _PROCESSES}
    assert all(one["scheduler"]["condition"] == "service_started" for one in (waits["gateway-a"], waits["gateway-b"]))
    assert waits["scheduler"]["worker"]["condition"] == "service_started"
    assert set(waits["worker"]) == {"init"}


_COMPOSE = shutil.which("docker-compose")


@pytest.mark.skipif(_COMPOSE is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("extra", [None, *FILES[1:]])
def test_compose_loads_them(extra: str | None) -> None:
    assert _COMPOSE is not None
    files = ["-f", "compose.yaml", *(["-f", extra] if extra else [])]
    done = subprocess.run([_COMPOSE, *files, "config"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
