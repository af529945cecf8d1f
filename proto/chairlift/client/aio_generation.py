"""One generation on asyncio, and the channels that it runs over.

Edges only: calls, pauses and clocks. What a stream means lies in `stream_state`, what follows a failure in `recovery`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from chairlift.client.connection import DRAINING, MAX_LEFT_CHANNELS, Connection
from chairlift.client.errors import ChairliftError, RequestCancelledError, StreamCorruptError
from chairlift.client.jitter import jitter
from chairlift.client.recovery import NextCall, Recovery, RetryPolicy
from chairlift.client.requests import outlives_its_stream
from chairlift.client.results import Accepted, CancelOutcome, Completion, Delta
from chairlift.client.status import error_from_status
from chairlift.client.stream_state import StreamState
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc


class AsyncGateways:
    """Channels to every target; calls go to one until it fails."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credentials = connection.tls.credentials() if connection.tls is not None else None
        self._channels = [self._open(position) for position in range(len(connection.targets))]
        self._stubs = [pb_grpc.InferenceServiceStub(channel) for channel in self._channels]
        self._left: list[grpc.aio.Channel] = []
        """Channels to gateways that drain: streams on them go on."""
        self._current = 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """For one call. Raises OSError when the token's file cannot be read."""
        return self._connection.metadata

    def current(self) -> "pb_grpc.InferenceServiceAsyncStub":
        """Methods of the gateway in use."""
        return self._stubs[self._current]

    async def turn_from_current(self, error: ChairliftError | None) -> None:
        """The gateway in use failed: the next one's turn.

        One that drains keeps its connections: behind the same address another may answer a new one.
        """
        current = self._current
        if error is not None and error.reason == DRAINING:
            self._left.append(self._channels[current])
            self._channels[current] = self._open(current)
            self._stubs[current] = pb_grpc.InferenceServiceStub(self._channels[current])
            if len(self._left) > MAX_LEFT_CHANNELS:
                await self._left.pop(0).close()
        self._current = (current + 1) % len(self._stubs)

    async def close(self) -> None:
        """Closes all channels."""
        for channel in [*self._channels, *self._left]:
            await channel.close()

    def _open(self, position: int) -> grpc.aio.Channel:
        target, options = self._connection.targets[position], self._connection.options[position]
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self._credentials, options=options)


class AsyncGeneration:
    """One generation under way: an async iterator of deltas and an async context manager.

    It starts with the first `await` and ends with its iteration, `wait`, or `aclose`. Errors carry what had arrived as
    `partial`.
    """

    def __init__(
        self,
        gateways: AsyncGateways,
        request: pb.GenerateRequest,
        timeout: float | None,
        retry: RetryPolicy,
        cancel: Callable[[str], Awaitable[CancelOutcome]],
    ) -> None:
        self._cancel = cancel
        self._gateways = gateways
        self._state = StreamState(request)
        self._timeout = timeout
        self._retry = retry
        self._recovery: Recovery | None = None
        self._call: Any = None
        self._events: AsyncIterator[pb.GenerateResponse | pb.ResumeResponse] | None = None
        self._next_call = NextCall.GENERATE
        self._is_over = False

    @property
    def request_id(self) -> str:
        """Id of the request, known before it is sent."""
        return self._state.request_id

    @property
    def accepted(self) -> Accepted | None:
        """The server's first word, once it has come."""
        return self._state.accepted

    @property
    def completion(self) -> Completion:
        """What has arrived so far; the whole after the end."""
        return self._state.completion()

    async def wait(self) -> Completion:
        """Receives the rest and returns the whole. Raises ChairliftError."""
        async for _ in self:
            pass
        if not self._state.is_success:
            raise RequestCancelledError("the generation was closed")
        return self.completion

    async def cancel(self) -> CancelOutcome:
        """Asks the server to end the request; whoever iterates then meets RequestCancelledError."""
        return await self._cancel(self.request_id)

    async def aclose(self) -> None:
        """Ends the stream on this side, and with it the request.

        One with a `detach_grace` is cancelled by a call of its own; where no server answers, it ends after that time.
        """
        was_over, self._is_over = self._is_over, True
        if not was_over:
            await self._abandon()

    async def _abandon(self) -> None:
        if self._call is None:
            return
        self._call.cancel()
        if outlives_its_stream(self._state.request):
            with contextlib.suppress(ChairliftError):
                await self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._is_over:
            try:
                event = await self._receive()
                delta = None if event is None else self._state.on_event(event)
            except ChairliftError as error:
                self._is_over = True
                if isinstance(error, StreamCorruptError):
                    await self._abandon()
                elif self._call is not None:
                    self._call.cancel()
                error.request_id = self.request_id
                error.partial = self.completion
                raise
            if event is None:
                self._is_over = True
            elif delta is not None:
                return delta
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _receive(self) -> pb.GenerationEvent | None:
        """The next event, over broken streams if need be; None at the proper end. Raises ChairliftError."""
        while True:
            error: ChairliftError | None = None
            try:
                if self._events is None:
                    self._events = aiter(self._attach())
                return (await anext(self._events)).event
            except StopAsyncIteration:
                pass
            except grpc.aio.AioRpcError as failure:
                error = error_from(failure)
            except asyncio.CancelledError:
                if self._is_over:
                    raise RequestCancelledError("the generation was closed") from None
                raise
            if not await self._recover(error):
                return None

    def _attach(self) -> Any:
        now = time.monotonic()
        if self._recovery is None:
            self._recovery = Recovery(self._retry, None if self._timeout is None else now + self._timeout)
        self._state.begin_attachment()
        stub = self._gateways.current()
        settings: dict[str, Any] = {"timeout": self._recovery.remaining_s(now), "metadata": self._gateways.metadata}
        if self._next_call is NextCall.GENERATE:
            self._call = stub.Generate(self._state.request, **settings)
        else:
            self._call = stub.Resume(self._state.resume_request(), **settings)
        return self._call

    async def _recover(self, error: ChairliftError | None) -> bool:
        """Whether the stream goes on after its end; raises what ended it badly."""
        self._events = None
        assert self._recovery is not None
        step = self._recovery.after_stream_end(self._state, error, time.monotonic(), jitter())
        if step is None:
            return False
        self._next_call = step.call
        await self._gateways.turn_from_current(error)
        await asyncio.sleep(step.pause_s)
        return True


def error_from(failure: grpc.aio.AioRpcError) -> ChairliftError:
    """The typed error of a failed call."""
    return error_from_status(failure.code(), failure.details(), failure.trailing_metadata())
