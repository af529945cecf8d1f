"""Asks a process's HTTP port whether it is ready, whether it lives, and a scheduler whose fault ends were."""

import asyncio
import re
from contextlib import closing

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
    with closing(_Connection(address)) as connection:
        return _to_answer(await connection.get("/readyz", timeout_s))


class LiveProbe:
    """Asks one process ``/livez``, time and again over one connection: neither side pays for another each time."""

    def __init__(self, address: Address) -> None:
        self._connection = _Connection(address)

    async def ask(self, timeout_s: float = _TIMEOUT_S) -> Answer:
        """One ``GET /livez``. A process that does not answer in time is not live."""
        return _to_answer(await self._connection.get("/livez", timeout_s))

    def close(self) -> None:
        """Ends the connection. The next question makes another."""
        self._connection.close()


async def ask_excused_losses(scheduler: Address, timeout_s: float = _TIMEOUT_S) -> int | None:
    """How many ends of its workers a scheduler has found a request guilty of, over its life.

    None while it does not say: no answer in time, or half of one.
    """
    with closing(_Connection(scheduler)) as connection:
        text = (await connection.get("/metrics", timeout_s, _METRICS_BYTES)).decode(errors="replace")
    series = f"{EXCUSED_LOSSES.exposed_name} "
    values = [line.removeprefix(series) for line in text.splitlines() if line.startswith(series)]
    return round(float(values[0])) if values and text.endswith("\n") else None


class _Connection:
    """To one port, made when it is first needed and kept between questions."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str, timeout_s: float, max_bytes: int = _ANSWER_BYTES) -> bytes:
        """What lies at `path`, with its head; empty where that did not come in time, or makes no sense."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(path, max_bytes)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            self.close()
            return b""

    def close(self) -> None:
        """Ends it. The next question makes another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _get(self, path: str, max_bytes: int) -> bytes:
        if self._streams is not None:
            try:
                return await self._exchange(*self._streams, path, max_bytes)
            except (ConnectionError, EOFError):
                self.close()  # the other side ends connections that were idle for long
        self._streams = await asyncio.open_connection(self._address.host, self._address.port)
        return await self._exchange(*self._streams, path, max_bytes)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, max_bytes: int
    ) -> bytes:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        found = _CONTENT_LENGTH.search(head)
        length = int(found[1]) if found is not None else 0
        if length > max_bytes:
            raise ValueError(f"an answer of {length} bytes")
        return head + await reader.readexactly(length)


def _to_answer(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    return Answer(head.split(b" ", 2)[1:2] == [b"200"], body.decode(errors="replace").strip())
