"""What a run shows the stack that it loads: nothing, what the user gave, or credentials of its own making."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chairlift.client import Tls
from chairlift.runtime.curve import CurveError, new_key_pair, secret_file_text
from chairlift.runtime.settings import Settings
from deploy.bench.errors import BenchUsageError
from deploy.bench.tenants import own_credentials

_TENANTS = ("left", "right")
_PEERS = {"scheduler": ("gateway", "worker"), "gateway": ("scheduler",), "worker": ("scheduler",)}


class SecurityError(BenchUsageError):
    """Credentials cannot be made here. The message says why."""


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the stack, and what its callers show."""

    settings: Settings
    users: tuple[str | None, ...] = (None,)
    """Tokens; clients take turns."""
    operator: str | None = None
    tls: Tls | bool = False
    ipc: Mapping[str, Mapping[str, str]] = {}
    """Settings of ``[ipc]`` for each kind of process: keys of its own."""
    conditions: str = "no credentials"
    """For the report."""


@contextmanager
def throw_away_security(settings: Settings) -> Iterator[Security]:
    """TLS, tokens of two tenants and CURVE between the processes, from files that are gone after the block.

    Raises SecurityError where openssl or CURVE is missing, or where `settings` name credentials already.
    """
    gateway = settings.gateway
    if gateway.auth_file or gateway.tls_cert_file or settings.ipc.curve_secret_key_file:
        raise SecurityError("the settings name credentials already; a run makes its own, or is given all of them")
    with (
        tempfile.TemporaryDirectory(prefix="chairlift-chaos-keys-") as name,
        own_credentials(settings, _TENANTS) as credentials,
    ):
        folder = Path(name)
        certificate, key = _make_certificate(folder)
        with_tls = msgspec.structs.replace(
            credentials.settings.gateway, tls_cert_file=str(certificate), tls_key_file=str(key)
        )
        yield Security(
            settings=msgspec.structs.replace(credentials.settings, gateway=with_tls),
            users=tuple(credentials.tenant_keys.values()),
            operator=credentials.api_key,
            tls=Tls(ca=certificate),
            ipc=_make_keys(folder),
            conditions="TLS, bearer tokens of two tenants, CURVE between processes",
        )


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """One that signs itself, for loopback, and its key."""
    certificate, key = folder / "server.crt", folder / "server.key"
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        raise SecurityError("certificates are made with openssl, which is not installed") from None
    except subprocess.CalledProcessError as error:
        raise SecurityError(f"openssl: {error.stderr.decode(errors='replace').strip()}") from None
    return certificate, key


def _make_keys(folder: Path) -> dict[str, dict[str, str]]:
    """A CURVE key for each kind of process, and lists of whom each lets in or pins."""
    settings = {}
    for section in _PEERS:
        try:
            pair = new_key_pair()
        except CurveError as error:
            raise SecurityError(str(error)) from None
        (folder / f"{section}.key").touch(0o600)
        (folder / f"{section}.key").write_text(secret_file_text(pair))
        (folder / f"{section}.pub").write_text(f"{pair.public.decode()}\n")
        settings[section] = {"curve_secret_key_file": str(folder / f"{section}.key")}
    for section, peers in _PEERS.items():
        settings[section] |= {f"curve_{peer}_keys_file": str(folder / f"{peer}.pub") for peer in peers}
    return settings
