"""Renders chats in the template process, one at a time, and replaces that process when it does not answer in time.

Waiters queue in order; how many there can be is bounded by the number of open calls. Belongs to one event loop.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import msgspec

from gateway.text.chat_template import Chat
from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.text.template_process import Answer, NotRendered, Rendered, TemplateSetup, to_frame

_LENGTH_BYTES = 4
_UTF8_BYTES = 4


class TemplateRenderer:
    """Owns the template process. `timeout_s` bounds one chat, `start_timeout_s` a start of the process."""

    def __init__(self, setup: TemplateSetup, timeout_s: float, start_timeout_s: float = 30.0) -> None:
        self._setup = setup
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._max_answer_bytes = setup.max_chars * _UTF8_BYTES + 4096
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._exchanges: set[asyncio.Task[str]] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self.restarts = 0
        """Times that the process was replaced."""

    async def start(self) -> None:
        """Starts the process and compiles the template. Raises ChatTemplateError where it does not compile."""
        async with self._turn:
            await self._ensure_process()

    async def render(self, chat: Chat) -> str:
        """The chat's prompt. Raises ChatTemplateError; a caller that is cancelled leaves the process in step."""
        exchange = asyncio.create_task(self._render_in_turn(chat))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._forget)
        return await asyncio.shield(exchange)

    async def close(self) -> None:
        """Ends the process; chats under way fail."""
        for exchange in tuple(self._exchanges):
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        await self._kill()

    def _forget(self, exchange: "asyncio.Task[str]") -> None:
        self._exchanges.discard(exchange)
        if not exchange.cancelled():
            # Retrieved here too, for a caller that was cancelled meanwhile and will not look.
            exchange.exception()

    async def _render_in_turn(self, chat: Chat) -> str:
        async with self._turn:
            process = await self._ensure_process()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._exchange(process, self._encoder.encode(chat))
            except TimeoutError:
                await self._replace()
                raise ChatTemplateError(
                    TemplateProblem.TOO_SLOW,
                    f"the model's chat template took longer than {self._timeout_s:g} s for these messages",
                ) from None
            except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
                await self._replace()
                raise ChatTemplateError(
                    TemplateProblem.FAILED, "the model's chat template broke its process on these messages"
                ) from None

    async def _ensure_process(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "gateway.text.template_process", stdin=PIPE, stdout=PIPE
                )
                await self._exchange(self._process, self._encoder.encode(self._setup))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, msgspec.DecodeError):
            await self._kill()
            raise ChatTemplateError(
                TemplateProblem.UNAVAILABLE, "the process that renders chat templates does not start"
            ) from None
        except ChatTemplateError:
            await self._kill()
            raise
        return self._process

    async def _exchange(self, process: Process, request: bytes) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(to_frame(request))
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "little")
        if length > self._max_answer_bytes:
            raise msgspec.DecodeError("an answer over its limit")
        match self._decoder.decode(await process.stdout.readexactly(length)):
            case Rendered(text):
                return text
            case NotRendered(problem, message):
                raise ChatTemplateError(TemplateProblem(problem), message)

    async def _replace(self) -> None:
        self.restarts += 1
        await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        # Reads what is left and closes the pipes: a transport that is only dropped warns at garbage collection.
        await process.communicate()
