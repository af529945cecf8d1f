"""Asks a process's HTTP port whether it is ready, whether it lives, and a scheduler whose fault ends were."""

import asyncio
import re

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.metric_table import EXCUSED_LOSSES

_ANSWER_BYTES = 4096
_METRICS_BYTES = 1 << 20
_TIMEOUT_S = 1.0
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)


class Answer(msgspec.Struct, frozen=True):
    """What a process said, or that it said nothing."""

    is_yes: bool
    reason: str = ""
    """Why not, in its own words; empty while it does not answer."""


async def ask_ready(address: Address, timeout_s: float = _TIMEOUT_S) -> Answer:
    """One ``GET /readyz``. A process that does not answer in time is not ready."""
    return await _ask(address, "/readyz", timeout_s)


class LiveProbe:
    """Asks one process ``/livez``, time and again over one connection: neither side pays for another each time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, timeout_s: float = _TIMEOUT_S) -> Answer:
        """One ``GET /livez``. A process that does not answer in time is not live."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            self.close()
            return Answer(False)

    def close(self) -> None:
        """Ends the connection. The next question makes another."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _ask(self) -> Answer:
        if self._connection is not None:
            try:
                return await self._exchange(*self._connection)
            except (ConnectionError, EOFError):
                self.close()  # the other side ends connections that were idle for long
        self._connection = await asyncio.open_connection(self._address.host, self._address.port)
        return await self._exchange(*self._connection)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        writer.write(f"GET /livez HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        found = _CONTENT_LENGTH.search(head)
        length = int(found[1]) if found is not None else 0
        if length > _ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        return _to_answer(head, await reader.readexactly(length))


async def ask_excused_losses(scheduler: Address, timeout_s: float = _TIMEOUT_S) -> int | None:
    """How many ends of its workers a scheduler has found a request guilty of, over its life.

    None while it does not say: no answer in time, or half of one.
    """
    try:
        async with asyncio.timeout(timeout_s):
            text = (await _get(scheduler, "/metrics", _METRICS_BYTES)).decode(errors="replace")
    except (OSError, TimeoutError):
        return None
    series = f"{EXCUSED_LOSSES.exposed_name} "
    values = [line.removeprefix(series) for line in text.splitlines() if line.startswith(series)]
    return round(float(values[0])) if values and text.endswith("\n") else None


async def _ask(address: Address, path: str, timeout_s: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _get(address, path)
    except (OSError, TimeoutError):
        return Answer(False)
    head, _, body = answer.partition(b"\r\n\r\n")
    return _to_answer(head, body)


def _to_answer(head: bytes, body: bytes) -> Answer:
    return Answer(head.split(b" ", 2)[1:2] == [b"200"], body.decode(errors="replace").strip())


async def _get(address: Address, path: str, most: int = _ANSWER_BYTES) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        await writer.drain()
        answer = bytearray()
        while len(answer) < most and (part := await reader.read(most)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()
