"""A TCP proxy that misbehaves when told to: delay, reset, partition, half-open connections. Loopback only."""

import asyncio
import random
import socket
import struct

from chairlift.runtime.addresses import Address

_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS = 256
"""Held for a direction of a connection: beyond it, the sender meets TCP's own back-pressure."""
_RETRY_S = 0.05
_ABORT = struct.pack("ii", 1, 0)


class FaultProxy:
    """Forwards connections to `upstream`, also to one that is not there yet. Bytes are never changed or reordered."""

    def __init__(self, upstream: Address, seed: int = 0) -> None:
        self.upstream = upstream
        self.delay_s = 0.0
        """Added to everything that passes from now on, which is cut into pieces meanwhile."""
        self._chance = random.Random(seed)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Address:
        """Listens; returns where."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address("127.0.0.1", int(self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()

    def reset(self) -> None:
        """Ends every connection with RST on both sides; what was on its way is lost."""
        for pair in list(self._pairs):
            pair.abort()

    def partition(self) -> None:
        """From now on nothing passes, and nobody is told. New connections are taken and lead nowhere."""
        self._is_open.clear()

    def half_open(self) -> None:
        """A partition in which the upstream end loses its connections, and the other end does not learn of it."""
        self.partition()
        for pair in list(self._pairs):
            pair.abort_upstream()

    def heal(self) -> None:
        """What was held back goes on; half-open connections are reset."""
        for pair in list(self._pairs):
            if pair.is_half_open:
                pair.abort()
        self._is_open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        pair = _Pair(writer)
        self._pairs.add(pair)
        try:
            upstream_reader, pair.upstream = await self._connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(pair, reader, pair.upstream))
                group.create_task(self._pump(pair, upstream_reader, writer))
        except* (OSError, _EndedError, asyncio.CancelledError):
            pass  # one side ended, or the proxy is closed: so does the other, below
        finally:
            pair.abort()
            self._pairs.discard(pair)
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            await self._is_open.wait()
            try:
                return await asyncio.open_connection(self.upstream.host, self.upstream.port)
            except OSError:
                await asyncio.sleep(_RETRY_S)

    async def _pump(self, pair: "_Pair", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: a task reads and stamps, this one writes when the time has come."""
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_CHUNKS)
        receiving = loop.create_task(self._receive(reader, held))
        try:
            while True:
                due, data = await held.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._is_open.wait()
                if not data:
                    # A half-open connection swallows: its end is told when the partition heals.
                    await pair.until_told()
                    raise _EndedError
                for piece in self._cut(data):
                    writer.write(piece)
                    await writer.drain()
        finally:
            receiving.cancel()

    async def _receive(self, reader: asyncio.StreamReader, held: "asyncio.Queue[tuple[float, bytes]]") -> None:
        loop = asyncio.get_running_loop()
        data = b"?"
        while data:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            await held.put((loop.time() + self.delay_s, data))

    def _cut(self, data: bytes) -> list[bytes]:
        if not self.delay_s or len(data) < 2:
            return [data]
        at = self._chance.randrange(1, len(data))
        return [data[:at], data[at:]]


class _EndedError(Exception):
    """A side of a connection has ended."""


class _Pair:
    """A connection's two sides."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.upstream: asyncio.StreamWriter | None = None
        self.is_half_open = False
        self._told = asyncio.Event()

    async def until_told(self) -> None:
        """Returns at once unless half-open: then when it is over."""
        if self.is_half_open:
            await self._told.wait()

    def abort(self) -> None:
        """RST to both."""
        self._told.set()
        for writer in (self.client, self.upstream):
            if writer is not None:
                _abort(writer)

    def abort_upstream(self) -> None:
        """RST to one side; the other stays as it is."""
        self.is_half_open = True
        if self.upstream is not None:
            _abort(self.upstream)


def _abort(writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    if transport.is_closing():
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    transport.abort()
