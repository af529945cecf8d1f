"""How a supervisor asks a process: one question, one answer, and whatever goes wrong is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chairlift.runtime.addresses import Address
from chairlift.runtime.probes import ProbeServer, ProcessState
from deploy.launcher.probe import Answer, ask_live, ask_ready


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[Address]:
    """Where each question is answered so, and the connection ended; with None it stays open."""
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
        if answer is not None:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        for writer in held:
            writer.close()


async def test_a_process_answers_and_one_that_is_gone_does_not() -> None:
    state = ProcessState()
    state.set_ready(False, "loading weights")
    server = ProbeServer("127.0.0.1:0", state)
    address = Address("127.0.0.1", server.port)
    assert await ask_live(address, 30) == Answer(True, "ok")
    assert await ask_ready(address, 30) == Answer(False, "loading weights")
    server.close()
    assert await ask_live(address, 30) == Answer(False)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n"])
async def test_what_makes_no_sense_is_no_yes(answer: bytes) -> None:
    async with answering(answer) as address:
        assert await ask_live(address, 30) == Answer(False)


async def test_silence_is_no_answer() -> None:
    async with answering(None) as address:
        assert await ask_live(address, 0.05) == Answer(False)
