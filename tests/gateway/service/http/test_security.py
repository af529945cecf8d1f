"""The HTTP port behind tokens and TLS: the same credentials as gRPC's, asked for before a body is read."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from chairlift.ipc import front
from chairlift.runtime.token_hash import hash_token

COMPLETIONS = "/v1/completions"


@pytest.fixture
def auth_file(tmp_path: Path) -> str:
    file = tmp_path / "auth.toml"
    file.write_text(
        f"""
[tenants.acme]
[tenants.other]
models = ["another"]
[[tokens]]
name = "acme"
hash = "{hash_token("token-of-acme")}"
tenant = "acme"
[[tokens]]
name = "other"
hash = "{hash_token("token-of-other")}"
tenant = "other"
"""
    )
    return str(file)


async def test_token_decides_who_calls(
    start_rig: Any, make_http: Any, make_openai: Any, auth_file: str, spell: Any
) -> None:
    async with start_rig(http_listen="127.0.0.1:0", auth_file=auth_file) as rig:
        http = make_http(rig)
        for token in ("", "Bearer wrong", "Basic eDp5", "Bearer token-of-acme-"):
            # Not even a body that is too large is read from whoever has no token.
            answer = await http.ask("POST", COMPLETIONS, b"x", authorization=token, content_length="99999999")
            assert answer.status == 401, token
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await http.ask("GET", "/v1/models")).status == 401
        assert (await http.ask("GET", "/metrics")).status == 401
        assert (await http.ask("GET", "/livez")).status == 200
        assert (await http.ask("GET", "/metrics", Authorization="bearer token-of-acme")).status == 200
        asking = asyncio.create_task(
            http.ask("POST", COMPLETIONS, {"prompt": "go"}, authorization="Bearer token-of-acme")
        )
        submit = await rig.scheduler.accept()
        assert submit.tenant == "acme"
        rig.scheduler.finish(submit.handle, 0)
        assert (await asking).status == 200
        forbidden = await http.ask("POST", COMPLETIONS, {"prompt": "go"}, authorization="Bearer token-of-other")
        assert forbidden.status == 403
        assert not rig.scheduler.heard(front.Submit)
        assert (await http.ask("GET", "/v1/models", authorization="Bearer token-of-other")).json["data"] == []
        with pytest.raises(openai.AuthenticationError):
            await make_openai(rig).models.list()


_HAS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl, which is not here"
)


def _make(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1")
    subprocess.run([*made, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def tls_files(tmp_path: Path) -> dict[str, str]:
    cert, key = _make(tmp_path, "server")
    return {"tls_cert_file": str(cert), "tls_key_file": str(key)}


@_HAS_OPENSSL
async def test_port_speaks_tls_with_the_same_files(start_rig: Any, tls_files: dict[str, str]) -> None:
    async with start_rig(http_listen="127.0.0.1:0", **tls_files) as rig:
        context = ssl.create_default_context(cafile=tls_files["tls_cert_file"])
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.service.http_port, ssl=context)
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
        await writer.wait_closed()


def _ask(
    port: int, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether the session was taken up, and the one to take up next; (False, None) where the client is turned away."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
        ):
            connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
            # A certificate that is not accepted shows here: with TLS 1.3 the client's handshake is over before.
            if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return False, None
            return bool(connection.session_reused), connection.session
    except (ssl.SSLError, ConnectionError):
        return False, None


@_HAS_OPENSSL
async def test_withdrawn_roots_of_clients_let_nobody_in_any_more(
    start_rig: Any, tls_files: dict[str, str], tmp_path: Path
) -> None:
    old, new = _make(tmp_path, "old"), _make(tmp_path, "new")
    roots = tmp_path / "roots.pem"
    shutil.copy(old[0], roots)
    nobody, by_old, by_new = (ssl.create_default_context(cafile=tls_files["tls_cert_file"]) for _ in range(3))
    by_old.load_cert_chain(*old)
    by_new.load_cert_chain(*new)
    tls = tls_files | {"tls_client_ca_file": str(roots)}
    async with start_rig(http_listen="127.0.0.1:0", secret_poll_interval_s=0.05, **tls) as rig:
        port = rig.service.http_port
        _, session = await asyncio.to_thread(_ask, port, by_old)
        assert session is not None
        is_reused, session = await asyncio.to_thread(_ask, port, by_old, session)
        assert is_reused
        for client in (nobody, by_new):
            assert await asyncio.to_thread(_ask, port, client) == (False, None)
        # What makes no root leaves the old one in force.
        roots.write_text("none")
        await asyncio.sleep(0.15)
        assert (await asyncio.to_thread(_ask, port, by_old))[1] is not None
        shutil.copy(new[0], roots)
        async with asyncio.timeout(20):
            while (await asyncio.to_thread(_ask, port, by_new))[1] is None:  # noqa: ASYNC110  # tells no event
                await asyncio.sleep(0.02)
        for client in (nobody, by_old):
            assert await asyncio.to_thread(_ask, port, client) == (False, None)
        # Nor does a session of before.
        assert await asyncio.to_thread(_ask, port, by_old, session) == (False, None)
