"""The whole stack as someone runs it who exposes it: tokens, TLS, two gateways; and what none of it may write down."""

import base64
import os
import shutil
import signal
import ssl
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from chairlift.client import (
    CancelOutcome,
    Client,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Tls,
    UnauthenticatedError,
)
from chairlift.runtime.token_hash import hash_token, new_token
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made with openssl, which is not here")

FAULT_TOKEN = 31_337
"""A step that computes a prompt with this id fails."""
CANARY = "The quartz zebra of Ulm whispers 77193 to nobody but the lighthouse keeper."
SALT, STOP, NAME = "salt-of-the-quartz-zebra", "stop-at-the-quartz-zebra", "name-of-the-quartz-zebra"


class RawCollector:
    """Keeps every byte that is exported to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Secured:
    """A stack with credentials, and clients for each of its tenants."""

    def __init__(self, stack: Any, folder: Path, tokens: dict[str, str], collector: RawCollector) -> None:
        self.stack, self.folder, self.tokens, self.collector = stack, folder, tokens, collector
        self.root = folder / "server.crt"
        self.tls = Tls(ca=self.root)

    def client(self, tenant: str) -> Client:
        return Client(self.stack.listen, token=self.tokens[tenant], tls=self.tls, timeout=120)

    def channel(self) -> grpc.Channel:
        return grpc.secure_channel(
            self.stack.listen, self.tls.credentials(), options=(("grpc.use_local_subchannel_pool", 1),)
        )

    def metadata(self, tenant: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[tenant]}"),)

    def gateways(self) -> list[int]:
        """Process ids."""
        pids = []
        for child in Path(f"/proc/{self.stack.process.pid}/task/{self.stack.process.pid}/children").read_text().split():
            if Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[2] == b"gateway":
                pids.append(int(child))
        return pids

    def post(self, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        """Over HTTP: status and answer."""
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        request = urllib.request.Request(f"https://{self.stack.http}{path}", body, headers)
        try:
            context = ssl.create_default_context(cafile=self.root)
            with urllib.request.urlopen(request, timeout=120, context=context) as answer:  # noqa: S310 - https it is
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def written(self) -> Iterator[tuple[str, bytes]]:
        """Everything that the stack has written anywhere, by where."""
        yield "log", self.stack.log_path.read_bytes()
        for number, body in enumerate(self.collector.bodies):
            yield f"telemetry {number}", body
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path != self.stack.log_path:
                yield str(path), path.read_bytes()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, make_stack: Any) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    cert, key, auth = folder / "server.crt", folder / "server.pkey", folder / "auth.toml"
    assert OPENSSL is not None
    subprocess.run(
        [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "9", "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    tokens = {tenant: new_token() for tenant in ("acme", "free")}
    entries = [
        f'[tenants.{tenant}]\n[[tokens]]\nname = "{tenant}-1"\ntenant = "{tenant}"\nhash = "{hash_token(token)}"\n'
        for tenant, token in tokens.items()
    ]
    auth.write_text("\n".join(sorted(entries)))
    collector = RawCollector()
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        environ.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        environ.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        environ.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        environ.setenv("CHAIRLIFT_FAULT_TOKEN", str(FAULT_TOKEN))
        stack = make_stack(
            folder, "supervisor.gateways=2", f"gateway.auth_file={auth}", f"gateway.tls_cert_file={cert}",
            f"gateway.tls_key_file={key}", "gateway.http_listen=127.0.0.1:0", f"scheduler.record={folder / 'record'}",
            "telemetry.log_level=debug",
        )  # fmt: skip
    try:
        yield Secured(stack.wait_ready(), folder, tokens, collector)
    finally:
        if stack.process.poll() is None:
            stack.process.kill()
            stack.process.wait(30)
        collector.close()


def test_another_tenants_request_does_not_exist(secured: Secured) -> None:
    options: Any = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
    with secured.client("acme") as acme, secured.client("free") as free:
        stream = acme.stream("Once upon a time there was", request_id="shared", **options)
        next(iter(stream))
        with secured.channel() as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            request = pb.ResumeRequest(request_id="shared")
            resume = stub.Resume(request, metadata=secured.metadata("free"), timeout=30)
            assert resume.code() is grpc.StatusCode.NOT_FOUND
        assert free.cancel("shared") is CancelOutcome.UNKNOWN
        with pytest.raises(NotFoundError):
            free.explain("shared")
        # The same id is another request of another tenant's, and no prefix of the one's is found by the other.
        theirs = free.generate("Once upon a time there was", request_id="shared", **options)
        own = stream.wait()
        assert own.text == theirs.text
        assert acme.explain("shared").output_tokens == free.explain("shared").output_tokens == 48
        prompt = "A long prompt that fills more than one block of the cache: " + "lift up, ski down, " * 12
        assert acme.generate(prompt, **options | {"max_tokens": 1}).usage.cached_tokens == 0
        assert acme.generate(prompt, **options | {"max_tokens": 1}).usage.cached_tokens > 0
        assert free.generate(prompt, **options | {"max_tokens": 1}).usage.cached_tokens == 0


def test_a_killed_gateway_loses_no_stream_of_the_library(secured: Secured) -> None:
    """Six connections spread over two gateways; one dies; every stream is what it would have been."""
    options: Any = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    prompts = [f"Number {index} of six is" for index in range(6)]
    clients = [secured.client("acme") for _ in prompts]
    undisturbed = [result.text for result in clients[0].generate_many(prompts, **options)]  # type: ignore[union-attr]
    streams = [client.stream(prompt, **options) for client, prompt in zip(clients, prompts, strict=True)]
    for stream in streams:
        next(iter(stream))
    os.kill(secured.gateways()[0], signal.SIGKILL)
    assert [stream.wait().text for stream in streams] == undisturbed
    for client in clients:
        client.close()


def _provoke(secured: Secured) -> str:
    """Sends the canary by every way, well and badly. Returns what the model made of it."""
    options: Any = {"max_tokens": 24, "ignore_eos": True, "stop": [STOP], "cache_salt": SALT}
    with secured.client("acme") as client:
        text = client.generate(CANARY, temperature=0, **options).text
        client.generate([{"role": "user", "content": CANARY, "name": NAME}], **options | {"max_tokens": 2})
        ids = client.tokenize(CANARY).token_ids
        assert client.detokenize(ids) == CANARY
        for bad in ({"temperature": 9}, {"max_tokens": 10**6}, {"stop": [CANARY * 40]}, {"logit_bias": {10**6: 1}}):
            with pytest.raises(InvalidArgumentError):
                client.generate(CANARY, **bad)
        with pytest.raises(NotFoundError):
            client.generate(CANARY, model=CANARY)
        with pytest.raises(InternalError):
            client.generate([*ids, FAULT_TOKEN], max_tokens=4)
        with client.stream(CANARY, max_tokens=400, ignore_eos=True) as left:
            next(iter(left))
        late = client.stream(CANARY, max_tokens=400, ignore_eos=True, timeout=0.5)
        with pytest.raises(Exception, match="deadline"):
            late.wait()
    with (
        Client(secured.stack.listen, token=CANARY, tls=secured.tls) as stranger,
        pytest.raises(UnauthenticatedError),
    ):
        stranger.generate(CANARY)
    body = msgspec.json.encode({"prompt": CANARY, "max_tokens": 2, "model": "smollm2-135m", "stop": STOP})
    token = secured.tokens["acme"]
    assert secured.post("/v1/completions", body, token)[0] == 200
    for bad_body in (body[:-1], body.replace(b'"max_tokens":2', b'"max_tokens":-2'), b"[" * 100 + body):
        status, answer = secured.post("/v1/completions", bad_body, token)
        assert status == 400
        assert CANARY.encode() not in answer
    with secured.channel() as channel:
        garbage: Any = channel.unary_stream("/chairlift.v1.InferenceService/Generate")
        call = garbage(b"\xff" + CANARY.encode(), metadata=secured.metadata("acme"), timeout=30)
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = garbage(CANARY.encode(), metadata=(("authorization", f"Bearer {CANARY[:20]}"),), timeout=30)
        assert call.code() is grpc.StatusCode.UNAUTHENTICATED
    return text


def _forms(name: str, text: str) -> Iterator[tuple[str, bytes]]:
    raw = text.encode()
    yield name, raw
    yield f"{name} in hex", raw.hex().encode()
    for shift in range(3):
        # Whatever stands before it, one of three alignments is what base64 shows.
        encoded = base64.b64encode(b"\0" * shift + raw)
        yield f"{name} in base64, shifted by {shift}", encoded[4 if shift else 0 : -4]


def _forms_of_ids(ids: list[int]) -> Iterator[tuple[str, bytes]]:
    for separator in (", ", ",", " ", "\n"):
        yield "token ids as text", separator.join(map(str, ids)).encode()
    yield "token ids as u32", struct.pack(f"<{len(ids)}I", *ids)
    yield "token ids as base64", base64.b64encode(struct.pack(f"<{len(ids)}I", *ids))
    yield "token ids as msgpack", b"".join(map(msgspec.msgpack.encode, ids))
    yield "token ids as protobuf", pb.TokenIds(ids=ids).SerializeToString()[2:]


def test_nothing_that_is_written_holds_what_a_user_wrote_or_was_told(secured: Secured) -> None:
    told = _provoke(secured)
    with secured.client("acme") as client:
        ids, told_ids = list(client.tokenize(CANARY).token_ids), list(client.tokenize(told).token_ids)
    assert len(told) > 20
    needles = [*_forms_of_ids(ids[2:-2]), *_forms_of_ids(told_ids[4:-4])]
    for name, text in (("prompt", CANARY), ("output", told.strip()), ("salt", SALT), ("stop", STOP), ("name", NAME)):
        needles += _forms(name, text)
    for tenant, token in secured.tokens.items():
        needles += _forms(f"token of {tenant}", token)
    for address in _probe_addresses(secured.stack.log()):
        secured.collector.bodies.append(_scrape(address))
    time.sleep(1.0)  # one more export of spans and metrics
    secured.stack.process.send_signal(signal.SIGTERM)
    assert secured.stack.process.wait(60) == 0, secured.stack.log()
    seen = dict(secured.written())
    assert len(seen["log"]) > 2000
    assert b'"request_ended"' in seen["log"]
    assert any(b"chairlift" in body for where, body in seen.items() if where.startswith("telemetry"))
    assert any("record" in where and len(body) > 1000 for where, body in seen.items()), sorted(seen)
    found = [(where, name) for where, body in seen.items() for name, needle in needles if needle in body]
    assert found == []


def _scrape(address: str) -> bytes:
    """The metrics of a process, which may be on its way back from an earlier test's SIGKILL."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:  # noqa: S310 - http it is
                body: bytes = answer.read()
                return body
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _probe_addresses(log: str) -> list[str]:
    line = next(line for line in log.splitlines() if "/readyz" in line)
    return [word.removesuffix(",").removesuffix("/readyz") for word in line.split() if "/readyz" in word]
