"""HTTP/1.1 as a streaming client needs it: one POST or GET, status, and the body's lines as they come.

Owns connections and framing; knows nothing of what is sent. Standard library only.
"""

import asyncio
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

_LINE_LIMIT_BYTES = 4 << 20
_MAX_HEADERS = 200


class HttpError(Exception):
    """A server that is not there, hung up, or does not speak HTTP/1.1. The message says which."""


class Url(msgspec.Struct, frozen=True):
    """An ``http://`` or ``https://`` address."""

    host: str
    port: int
    path: str
    tls: bool

    def below(self, path: str) -> "Url":
        """`path` under this one."""
        return Url(self.host, self.port, self.path.rstrip("/") + path, self.tls)


def parse_url(text: str) -> Url:
    """``http[s]://host[:port][/path]``. Raises ValueError."""
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r}: expected http://HOST[:PORT][/PATH] or https://…")
    tls = parts.scheme == "https"
    return Url(parts.hostname, parts.port or (443 if tls else 80), parts.path, tls)


class Response:
    """An answer whose body is still to be read."""

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self._headers = headers
        self._reader = reader

    async def lines(self) -> AsyncIterator[bytes]:
        """The body's lines without their ends, each as soon as it is there. Raises HttpError."""
        rest = b""
        async for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
        if rest:
            yield rest

    async def body(self) -> bytes:
        """All of the body. Raises HttpError."""
        return b"".join([part async for part in self._parts()])

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            if self._headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self._reader.readuntil(b"\n")).split(b";")[0], 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
            elif "content-length" in self._headers:
                yield await self._reader.readexactly(int(self._headers["content-length"]))
            else:
                while part := await self._reader.read(1 << 16):
                    yield part
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise HttpError(f"broken answer: {error}") from None


@asynccontextmanager
async def send(
    url: Url, method: str, headers: Mapping[str, str], body: bytes, trust: ssl.SSLContext | None = None
) -> AsyncIterator[Response]:
    """One request on a connection of its own, which is closed at the end. Raises HttpError."""
    try:
        tls = (trust or ssl.create_default_context()) if url.tls else None
        reader, writer = await asyncio.open_connection(url.host, url.port, ssl=tls, limit=_LINE_LIMIT_BYTES)
    except OSError as error:
        raise HttpError(f"{url.host}:{url.port}: {error.strerror or error}") from None
    try:
        head = [f"{method} {url.path or '/'} HTTP/1.1", f"Host: {url.host}:{url.port}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        await writer.drain()
        yield await _read_head(reader)
    except OSError as error:
        raise HttpError(f"{url.host}:{url.port}: {error.strerror or error}") from None
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> Response:
    try:
        status = int((await reader.readuntil(b"\n")).split(b" ", 2)[1])
        headers: dict[str, str] = {}
        for _ in range(_MAX_HEADERS):
            name, _, value = (await reader.readuntil(b"\n")).decode("latin-1").partition(":")
            if not name.strip():
                return Response(status, headers, reader)
            headers[name.strip().lower()] = value.strip()
    except (EOFError, ValueError, IndexError, asyncio.LimitOverrunError):
        raise HttpError("the server hung up, or does not speak HTTP/1.1") from None
    raise HttpError(f"more than {_MAX_HEADERS} header lines")
