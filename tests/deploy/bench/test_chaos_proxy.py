"""The proxy that misbehaves: what it does to two ends that talk over it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from chairlift.runtime.addresses import Address
from deploy.bench.chaos.proxy import FaultProxy

PATIENCE_S = 30.0


class Pair:
    """A server that answers every line in capitals, the proxy before it, and clients."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []
        self.clients: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.proxy = FaultProxy(Address("127.0.0.1", int(self.server.sockets[0].getsockname()[1])))
        self.entry = await self.proxy.start()

    async def close(self) -> None:
        for writer in (*self.clients, *self.accepted):
            writer.close()
        await self.proxy.close()
        self.server.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.entry.host, self.entry.port)
        self.clients.append(writer)
        return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        while line := await reader.readline():
            writer.write(line.upper())


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.start()
    yield made
    await made.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text + b"\n")
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readline()


async def test_bytes_pass_in_order_with_and_without_delay(pair: Pair) -> None:
    reader, writer = await pair.connect()
    assert await ask(reader, writer, b"one") == b"ONE\n"
    pair.proxy.delay_s = 0.05
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await ask(reader, writer, b"two " * 5000) == b"TWO " * 5000 + b"\n"
    assert loop.time() - began >= 0.1


async def test_a_reset_ends_both_sides(pair: Pair) -> None:
    reader, writer = await pair.connect()
    await ask(reader, writer, b"one")
    pair.proxy.reset()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ConnectionResetError):
            await reader.read()
    again = await pair.connect()
    assert await ask(*again, b"two") == b"TWO\n"


async def test_a_partition_holds_back_and_loses_nothing(pair: Pair) -> None:
    reader, writer = await pair.connect()
    await ask(reader, writer, b"one")
    pair.proxy.partition()
    writer.write(b"two\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.readline()
    pair.proxy.heal()
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.readline() == b"TWO\n"


async def test_half_open_one_side_is_gone_and_the_other_hears_nothing_until_it_heals(pair: Pair) -> None:
    reader, writer = await pair.connect()
    await ask(reader, writer, b"one")
    pair.proxy.half_open()
    writer.write(b"lost\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.read(1)
    pair.proxy.heal()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_an_upstream_that_comes_later_is_waited_for() -> None:
    placeholder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = int(placeholder.sockets[0].getsockname()[1])
    placeholder.close()
    await placeholder.wait_closed()
    proxy = FaultProxy(Address("127.0.0.1", port))
    entry = await proxy.start()
    reader, writer = await asyncio.open_connection(entry.host, entry.port)

    async def serve(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        outgoing.write(await incoming.readline())
        outgoing.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    assert await ask(reader, writer, b"hello") == b"hello\n"
    writer.close()
    await proxy.close()
    server.close()
