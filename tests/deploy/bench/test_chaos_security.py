"""Credentials that a run makes for itself: every process finds its own and those of its peers, and none outlives it."""

import shutil
from pathlib import Path

import msgspec
import pytest

from chairlift.client import Tls
from chairlift.runtime.curve import parse_keys, read_own_key
from chairlift.runtime.settings import GatewaySettings, Settings
from deploy.bench.chaos.security import SecurityError, throw_away_security

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl, which is not here"
)


@needs_openssl
def test_peers_let_each_other_in_and_nobody_else() -> None:
    with throw_away_security(Settings()) as security:
        assert isinstance(security.tls, Tls)
        security.tls.credentials()
        own = {
            section: read_own_key(msgspec.structs.replace(Settings().ipc, **dict(values))).public
            for section, values in security.ipc.items()
        }
        assert len(set(own.values())) == 3
        lists = {
            (section, name): [key.key for key in parse_keys(Path(path).read_bytes(), name)]
            for section, values in security.ipc.items()
            for name, path in values.items()
            if name != "curve_secret_key_file"
        }
        assert lists == {
            ("scheduler", "curve_gateway_keys_file"): [own["gateway"]],
            ("scheduler", "curve_worker_keys_file"): [own["worker"]],
            ("gateway", "curve_scheduler_keys_file"): [own["scheduler"]],
            ("worker", "curve_scheduler_keys_file"): [own["scheduler"]],
        }
        assert len(set(security.users)) == 2
        assert security.operator not in security.users
        gateway = security.settings.gateway
        files = [Path(str(path)) for path in (gateway.auth_file, gateway.tls_cert_file, gateway.tls_key_file)]
        assert all(path.exists() for path in files)
    assert not any(path.exists() for path in files)


def test_what_the_settings_name_already_is_not_replaced() -> None:
    settings = Settings(gateway=GatewaySettings(auth_file="auth.toml"))
    with pytest.raises(SecurityError, match="already"), throw_away_security(settings):
        pass


def test_without_openssl_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SecurityError, match="not installed"), throw_away_security(Settings()):
        pass
