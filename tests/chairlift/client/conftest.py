"""A real gRPC server that answers as a test scripts it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc


class ScriptedServer(pb_grpc.InferenceServiceServicer):
    """Each method runs what the test put in its place: ``server.on_generate = …``. Requests are kept."""

    def __init__(self) -> None:
        self.target = ""
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.on_generate: Callable[..., AsyncIterator[pb.GenerationEvent]] = self.unscripted_stream
        self.on_resume: Callable[..., AsyncIterator[pb.GenerationEvent]] = self.unscripted_stream
        self.on_call: Callable[..., Awaitable[Any]] = self.unscripted_call
        """Every unary method."""

    # ---- events ----

    @staticmethod
    def accepted(request: Any, **fields: Any) -> pb.GenerationEvent:
        values = {"request_id": request.request_id, "stream_token": "token-1", "model": "tiny", "prompt_tokens": 3}
        return pb.GenerationEvent(accepted=pb.Accepted(**{**values, **fields}))

    @staticmethod
    def delta(offset: int, text: str, *, index: int = 0, num_tokens: int = 1, **fields: Any) -> pb.GenerationEvent:
        return pb.GenerationEvent(
            delta=pb.Delta(index=index, offset=offset, num_tokens=num_tokens, text=text, **fields)
        )

    @staticmethod
    def finished(
        output_tokens: int, *, index: int = 0, reason: Any = pb.FINISH_REASON_LENGTH, **fields: Any
    ) -> pb.GenerationEvent:
        usage = pb.Usage(prompt_tokens=3, cached_tokens=1, output_tokens=output_tokens)
        return pb.GenerationEvent(finished=pb.Finished(index=index, reason=reason, usage=usage, seed=7, **fields))

    @classmethod
    async def words(cls, request: Any, _context: Any) -> AsyncIterator[pb.GenerationEvent]:
        """A script: the prompt's own text, a word a token."""
        yield cls.accepted(request)
        for index in range(request.sampling.n or 1):
            words = request.text.split()
            for offset, word in enumerate(words):
                yield cls.delta(offset, f"{word} ", index=index)
            yield cls.finished(len(words), index=index)

    # ---- errors ----

    @staticmethod
    async def fail(
        context: Any, code: grpc.StatusCode, reason: str, *details: Message, message: str = "no", **metadata: str
    ) -> None:
        """Ends the call with a status that has google.rpc details; without `reason`, one that has none."""
        if not reason:
            await context.abort(code, message)
        status = status_pb2.Status(code=code.value[0], message=message)
        info = error_details_pb2.ErrorInfo(reason=reason, domain="chairlift", metadata=metadata)
        for detail in (info, *details):
            status.details.add().Pack(detail)
        await context.abort_with_status(rpc_status.to_status(status))

    # ---- the service ----

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self._note(request, context)
        async for event in self.on_generate(request, context):
            yield pb.GenerateResponse(event=event)

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[pb.ResumeResponse]:
        self._note(request, context)
        async for event in self.on_resume(request, context):
            yield pb.ResumeResponse(event=event)

    async def _unary(self, request: Any, context: Any) -> Any:
        self._note(request, context)
        return await self.on_call(request, context)

    Cancel = Explain = Tokenize = Detokenize = ListModels = GetModel = _unary

    def _note(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))

    async def unscripted_stream(self, _request: Any, context: Any) -> AsyncIterator[pb.GenerationEvent]:
        await self.fail(context, grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED")
        yield pb.GenerationEvent()

    async def unscripted_call(self, _request: Any, context: Any) -> Any:
        await self.fail(context, grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED")


@asynccontextmanager
async def _running(servicer: ScriptedServer) -> AsyncIterator[ScriptedServer]:
    server = grpc.aio.server()
    pb_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(None)


@contextmanager
def _running_on_a_thread(servicer: ScriptedServer) -> Iterator[ScriptedServer]:
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        async with _running(servicer):
            started.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(30)
    try:
        yield servicer
    finally:
        stop[0]()
        thread.join()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """On the test's own event loop."""
    async with _running(ScriptedServer()) as servicer:
        yield servicer


@pytest.fixture
async def other_server() -> AsyncIterator[ScriptedServer]:
    async with _running(ScriptedServer()) as servicer:
        yield servicer


@pytest.fixture
def threaded_server() -> Iterator[ScriptedServer]:
    """On a thread, for clients that block."""
    with _running_on_a_thread(ScriptedServer()) as servicer:
        yield servicer
