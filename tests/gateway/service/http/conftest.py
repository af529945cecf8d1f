"""A gateway with its HTTP port, OpenAI's own client, and a plain one that sees every byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

WAIT_S = 20.0


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class Http:
    """Requests over connections of their own."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        packed = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        fields = {"host": "test", "connection": "close", "content-length": str(len(packed))}
        if method == "POST":
            fields["content-type"] = "application/json"
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + packed)
        return reader, writer

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        reader, writer = await self.open(method, path, body, **headers)
        try:
            async with asyncio.timeout(WAIT_S):
                return parse(await reader.read())
        finally:
            writer.close()


def parse(packed: bytes) -> Answer:
    head, _, body = packed.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunk(body)
    return Answer(int(first.split()[1]), headers, body)


def unchunk(packed: bytes) -> bytes:
    out = b""
    while packed:
        size, _, packed = packed.partition(b"\r\n")
        count = int(size, 16)
        out, packed = out + packed[:count], packed[count + 2 :]
    return out


@pytest_asyncio.fixture
async def http_rig(start_rig: Callable[..., Any]) -> AsyncIterator[Any]:
    """Its model has a chat template."""
    async with start_rig(has_template=True, http_listen="127.0.0.1:0") as rig:
        yield rig


@pytest_asyncio.fixture
async def plain_rig(start_rig: Callable[..., Any]) -> AsyncIterator[Any]:
    async with start_rig(http_listen="127.0.0.1:0") as rig:
        yield rig


@pytest.fixture
def make_http() -> Callable[[Any], Http]:
    return lambda rig: Http(rig.service.http_port)


@pytest_asyncio.fixture
async def make_openai(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Any], AsyncOpenAI]]:
    """OpenAI's client for a rig's port; it tries nothing twice."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    clients: list[AsyncOpenAI] = []

    def make(rig: Any, **options: Any) -> AsyncOpenAI:
        url = f"http://127.0.0.1:{rig.service.http_port}/v1"
        clients.append(AsyncOpenAI(base_url=url, api_key="none", **({"max_retries": 0} | options)))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()
