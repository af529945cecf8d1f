"""Clients that are not our library: Node.js by the .proto files, and Python's generated stubs; with token and TLS."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

import chairlift
from chairlift.runtime.token_hash import hash_token
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc

NODE_FOLDER = Path(__file__).parent / "node"
PROTO = Path(chairlift.__file__).parents[1]
OPENSSL, NODE, NPM = shutil.which("openssl"), shutil.which("node"), shutil.which("npm")
BUF = shutil.which("buf", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SERVICE_CONFIG = files("chairlift.v1").joinpath("service_config.json").read_text()
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made with openssl, which is not here")


@pytest.fixture
def start_secured(start_rig: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """A gateway with TLS and one token, ``right``; gives the rig and the file with its root."""
    cert, key, auth = tmp_path / "server.crt", tmp_path / "server.pkey", tmp_path / "auth.toml"
    assert OPENSSL is not None
    subprocess.run(
        [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "9", "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    entry = f'[[tokens]]\nname = "a"\ntenant = "acme"\nhash = "{hash_token("right")}"\n'
    auth.write_text(f"[tenants.acme]\n{entry}")

    @asynccontextmanager
    async def start() -> AsyncIterator[tuple[Any, Path]]:
        async with start_rig(auth_file=str(auth), tls_cert_file=str(cert), tls_key_file=str(key)) as rig:
            yield rig, cert

    return start


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js with the two packages; they are fetched once and stay beside the script."""
    if NODE is None or NPM is None:
        pytest.skip("node and npm are not here")
    if not (NODE_FOLDER / "node_modules" / "@grpc" / "proto-loader").exists():
        command = [NPM, "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
        try:
            subprocess.run(command, cwd=NODE_FOLDER, check=True, capture_output=True, timeout=120)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm cannot fetch @grpc/grpc-js: {type(error).__name__}")
    return NODE


async def _run(node: str, rig: Any, root: Path, **settings: Any) -> "asyncio.subprocess.Process":
    own = {"target": f"localhost:{rig.service.port}", "proto": str(PROTO), "root": str(root)}
    values = own | {"token": "right", "prompt": "hi", "deadline_s": 30} | settings
    script = str(NODE_FOLDER / "generate.js")
    return await asyncio.create_subprocess_exec(node, script, json.dumps(values), stdout=asyncio.subprocess.PIPE)


async def _lines(process: "asyncio.subprocess.Process") -> list[Any]:
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return [json.loads(line) for line in out.splitlines()]


def _error_info(details: bytes) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details:
        detail.Unpack(info)
    return info


async def test_node_streams_over_tls_with_a_token(start_secured: Callable[..., Any], node: str, spell: Any) -> None:
    async with start_secured() as (rig, root):
        process = await _run(node, rig, root)
        submit = await rig.scheduler.accept()
        for offset, token in enumerate(spell("Chür")[:4]):
            rig.scheduler.tokens(submit.handle, offset, token)
        rig.scheduler.finish(submit.handle, 4)
        lines = await _lines(process)
        assert (submit.tenant, submit.request_id, submit.max_tokens) == ("acme", "from-node", 4)
        assert lines[:2] == [{"models": ["test"]}, {"accepted": "from-node"}]
        deltas = [line for line in lines if "text" in line]
        assert "".join(line["text"] for line in deltas) == "Chü"
        assert [line["offset"] for line in deltas] == sorted({line["offset"] for line in deltas})
        assert lines[-2]["reason"] == "FINISH_REASON_LENGTH"
        assert lines[-2]["usage"]["output_tokens"] == 4
        assert lines[-1] == {"code": 0, "details": None}


async def test_node_reads_typed_errors(start_secured: Callable[..., Any], node: str, wide_margin: None) -> None:
    async with start_secured() as (rig, root):
        lines = await _lines(await _run(node, rig, root, token="wrong"))
        assert lines[0] == {"models_error": grpc.StatusCode.UNAUTHENTICATED.value[0]}
        assert _error_info(base64.b64decode(lines[1]["details"])).reason == "INVALID_CREDENTIALS"
        late = await _run(node, rig, root, deadline_s=2)
        *_, status = await _lines(late)
        assert status["code"] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert _error_info(base64.b64decode(status["details"])).reason == "DEADLINE"


async def test_generated_stubs_stream_with_call_credentials_and_the_shipped_service_config(
    start_secured: Callable[..., Any], spell: Any
) -> None:
    async with start_secured() as (rig, root):
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(root.read_bytes()), grpc.access_token_call_credentials("right")
        )
        options = (("grpc.enable_http_proxy", 0), ("grpc.service_config", SERVICE_CONFIG))
        async with grpc.aio.secure_channel(f"localhost:{rig.service.port}", credentials, options=options) as channel:
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            call = stub.Generate(pb.GenerateRequest(text="hi", request_id="r"), wait_for_ready=True, timeout=30)
            submit = await rig.scheduler.accept()
            rig.scheduler.tokens(submit.handle, 0, *spell("ok"))
            rig.scheduler.finish(submit.handle, 2)
            events = await rig.caller.events(call)
        assert "".join(event.delta.text for event in events) == "ok"
        assert submit.tenant == "acme"


async def test_a_tool_of_the_command_line_finds_its_way_by_reflection(rig: Any, spell: Any) -> None:
    """`buf curl`, as `grpcurl` does, needs no .proto file."""
    if BUF is None:
        pytest.skip("buf is not here")
    url = f"http://127.0.0.1:{rig.service.port}/chairlift.v1.InferenceService/Generate"
    command = [BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", '{"text": "hi"}', url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell("ok"))
    rig.scheduler.finish(submit.handle, 2)
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b'"text":"ok"' in out.replace(b" ", b"")
