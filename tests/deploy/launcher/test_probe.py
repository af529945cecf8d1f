"""How a supervisor asks a process whether it lives: one connection, as long as it holds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chairlift.runtime.addresses import Address
from chairlift.runtime.probes import ProbeServer, ProcessState
from deploy.launcher.probe import Answer, LiveProbe

_YES = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


class StandIn:
    """Answers each question with the next of `answers`; None ends the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.num_connections = 0
        self._answers = list(answers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[LiveProbe]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        probe = LiveProbe(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        async with server:
            yield probe
            probe.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        while self._answers and await reader.readline():
            while await reader.readline() != b"\r\n":
                pass
            answer = self._answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


async def test_questions_go_over_one_connection() -> None:
    stand_in = StandIn(_YES, b"HTTP/1.1 503 no\r\nContent-Length: 6\r\n\r\nhangs\n", _YES)
    async with stand_in.serving() as probe:
        answers = [await probe.ask(30) for _ in range(3)]
    assert answers == [Answer(True, "ok"), Answer(False, "hangs"), Answer(True, "ok")]
    assert stand_in.num_connections == 1


async def test_a_connection_that_was_ended_meanwhile_is_no_answer() -> None:
    """A process ends connections on which it was not asked for a while: it lives nevertheless."""
    stand_in = StandIn(_YES, None, _YES)
    async with stand_in.serving() as probe:
        assert [await probe.ask(30) for _ in range(2)] == [Answer(True, "ok")] * 2
    assert stand_in.num_connections == 2


@pytest.mark.parametrize(
    "answer",
    [None, b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x" * 100_000],
)
async def test_what_makes_no_sense_is_no_sign_of_life(answer: bytes | None) -> None:
    async with StandIn(answer).serving() as probe:
        assert await probe.ask(30) == Answer(False)


async def test_silence_is_no_sign_of_life_and_the_next_answer_is_not_that_of_the_question_before() -> None:
    stand_in = StandIn(b"", _YES)
    async with stand_in.serving() as probe:
        assert await probe.ask(0.05) == Answer(False)
        assert await probe.ask(30) == Answer(True, "ok")
    assert stand_in.num_connections == 2


async def test_a_process_answers_and_one_that_is_gone_does_not() -> None:
    server = ProbeServer("127.0.0.1:0", ProcessState())
    probe = LiveProbe(Address("127.0.0.1", server.port))
    assert [await probe.ask(30) for _ in range(2)] == [Answer(True, "ok")] * 2
    server.close()
    probe.close()
    assert await probe.ask(30) == Answer(False)
