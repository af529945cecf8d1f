"""TLS and mTLS by files on a real server, and certificates that are replaced while it runs."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import structlog.testing

from chairlift.runtime.settings import GatewaySettings
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc
from chairlift.v1 import ops_pb2, ops_pb2_grpc
from gateway.security.secret_files import SecretFiles, SecretsError
from gateway.security.tls import CertificateFiles, ServerTls, TlsError

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made with openssl, which is not here")


class Authority:
    """Makes certificates for localhost in a folder; each has a self-signed root of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str) -> tuple[Path, Path]:
        """(certificate, key)."""
        assert OPENSSL is not None
        cert, key = self._folder / f"{name}.crt", self._folder / f"{name}.pkey"
        subprocess.run(
            [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "9", "-keyout", key, "-out", cert, "-subj", f"/CN={name}",
             "-addext", "subjectAltName=DNS:localhost"],
            check=True, capture_output=True,
        )  # fmt: skip
        return cert, key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _channel(port: int, roots: Path, client: tuple[Path, Path] | None = None) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        roots.read_bytes(),
        client[1].read_bytes() if client is not None else None,
        client[0].read_bytes() if client is not None else None,
    )
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options)


async def _answers(channel: grpc.aio.Channel) -> bool:
    """Whether the handshake goes well; closes the channel."""
    stub: Any = pb_grpc.InferenceServiceStub(channel)
    code = await stub.Tokenize(pb.TokenizeRequest(text="a"), timeout=10).code()
    await channel.close()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return code is grpc.StatusCode.OK


async def test_a_new_certificate_is_for_new_connections_and_old_streams_live_on(
    start_rig: Callable[..., Any], authority: Authority, spell: Any
) -> None:
    (cert, key), (new_cert, new_key) = authority.make("old"), authority.make("new")
    old_roots = Path(shutil.copy(cert, cert.with_suffix(".roots")))
    async with start_rig(tls_cert_file=str(cert), tls_key_file=str(key), secret_poll_interval_s=0.05) as rig:
        channel = _channel(rig.service.port, old_roots)
        stub: Any = pb_grpc.InferenceServiceStub(channel)
        call = stub.Generate(pb.GenerateRequest(text="hi"))
        submit = await rig.scheduler.accept()
        await rig.caller.event(call, "accepted")
        # Halfway, certificate and key do not match: the pair in force stays.
        shutil.copy(new_cert, cert)
        await asyncio.sleep(0.15)
        assert await _answers(_channel(rig.service.port, old_roots))
        shutil.copy(new_key, key)
        async with asyncio.timeout(20):
            while not await _answers(_channel(rig.service.port, new_cert)):  # noqa: ASYNC110  # tells no event
                await asyncio.sleep(0.02)
        assert not await _answers(_channel(rig.service.port, old_roots))
        rig.scheduler.tokens(submit.handle, 0, *spell("ok"))
        rig.scheduler.finish(submit.handle, 2)
        events = await rig.caller.events(call)
        assert "".join(event.delta.text for event in events) == "ok"
        await channel.close()
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{rig.service.port}", options=(("grpc.enable_http_proxy", 0),))
        assert not await _answers(plain)


async def test_clients_prove_who_they_are_where_roots_are_set(
    start_rig: Callable[..., Any], authority: Authority
) -> None:
    (cert, key), client, operator = authority.make("server"), authority.make("client"), authority.make("operator")
    files = {"tls_cert_file": str(cert), "tls_key_file": str(key)}
    roots = {"tls_client_ca_file": str(client[0]), "ops_tls_client_ca_file": str(operator[0])}
    async with start_rig(**files, **roots) as rig:
        assert await _answers(_channel(rig.service.port, cert, client))
        assert not await _answers(_channel(rig.service.port, cert))
        assert not await _answers(_channel(rig.service.port, cert, operator))
        async with _channel(rig.service.ops_port, cert, operator) as channel:
            ops: Any = ops_pb2_grpc.OpsServiceStub(channel)
            assert (await ops.GetLoad(ops_pb2.GetLoadRequest(), timeout=10)).replicas
        async with _channel(rig.service.ops_port, cert, client) as channel:
            ops = ops_pb2_grpc.OpsServiceStub(channel)
            error = await rig.caller.error(ops.GetLoad(ops_pb2.GetLoadRequest(), timeout=10))
            assert error.code is grpc.StatusCode.UNAVAILABLE


def test_files_that_make_no_certificate_are_named_and_no_key_is_quoted(authority: Authority, tmp_path: Path) -> None:
    (cert, key), (_, other_key) = authority.make("one"), authority.make("two")
    with pytest.raises(TlsError, match=r"one.crt and .*two.pkey: no certificate with its key: KEY_VALUES_MISMATCH"):
        ServerTls(CertificateFiles(str(cert), str(other_key), None))
    bad = tmp_path / "bad"
    bad.write_text(key.read_text().replace("PRIVATE", "PUBLIC"))
    with pytest.raises(TlsError) as error:
        ServerTls(CertificateFiles(str(cert), str(bad), None))
    assert key.read_text().splitlines()[1] not in str(error.value)
    with pytest.raises(TlsError, match="no PEM certificates"):
        ServerTls(CertificateFiles(str(cert), str(key), str(key)))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(
    authority: Authority, tmp_path: Path
) -> None:
    assert OPENSSL is not None
    cert, key = authority.make("one")
    locked = tmp_path / "locked"
    command = [OPENSSL, "pkcs8", "-topk8", "-in", str(key), "-out", str(locked), "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(TlsError, match="encrypted"):
        ServerTls(CertificateFiles(str(cert), str(locked), None))


def test_what_changed_and_what_is_wrong_is_told_by_its_setting(authority: Authority) -> None:
    (cert, key), (new_cert, new_key), (roots, _) = authority.make("one"), authority.make("two"), authority.make("ops")
    settings = GatewaySettings(tls_cert_file=str(cert), tls_key_file=str(key), ops_tls_client_ca_file=str(roots))
    with structlog.testing.capture_logs() as lines:
        secrets = SecretFiles(settings)
        shutil.copy(new_cert, cert)
        shutil.copy(new_key, key)
        secrets.reload()
        shutil.copy(new_cert, roots)
        secrets.reload()
        roots.write_text("none")
        secrets.reload()
    pair = ("gateway.tls_cert_file", "gateway.tls_key_file")
    assert [(line["port"], line.get("setting")) for line in lines] == [
        *(("gateway.listen", setting) for setting in pair),
        *(("gateway.ops_listen", setting) for setting in pair),
        ("gateway.ops_listen", "gateway.ops_tls_client_ca_file"),
        ("gateway.ops_listen", None),
    ]
    assert lines[-1]["reason"].startswith(f"gateway.ops_tls_client_ca_file = {roots}: no PEM certificates")
    with pytest.raises(SecretsError, match=r"gateway\.ops_tls_client_ca_file = .*: no PEM certificates"):
        SecretFiles(settings)
    with pytest.raises(SecretsError, match=r"gateway\.tls_client_ca_file = .*: no PEM certificates"):
        SecretFiles(msgspec.structs.replace(settings, tls_client_ca_file=str(roots), ops_tls_client_ca_file=None))
