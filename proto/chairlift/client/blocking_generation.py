"""One generation for programs without an event loop, and the channels that it runs over.

The counterpart of `aio_generation`, on gRPC's own threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc

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


class Gateways:
    """Channels to every target; calls go to one until it fails."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credentials = connection.tls.credentials() if connection.tls is not None else None
        self._channels = [self._open(position) for position in range(len(connection.targets))]
        self._stubs = [pb_grpc.InferenceServiceStub(channel) for channel in self._channels]
        self._left: list[grpc.Channel] = []
        """Channels to gateways that drain: streams on them go on."""
        self._current = 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """For one call. Raises OSError when the token's file cannot be read."""
        return self._connection.metadata

    def current(self) -> pb_grpc.InferenceServiceStub:
        """Methods of the gateway in use."""
        return self._stubs[self._current]

    def turn_from_current(self, error: ChairliftError | None) -> None:
        """The gateway in use failed: the next one's turn.

        One that drains keeps its connections: behind the same address another may answer a new one.
        """
        current = self._current
        if error is not None and error.reason == DRAINING:
            self._left.append(self._channels[current])
            self._channels[current] = self._open(current)
            self._stubs[current] = pb_grpc.InferenceServiceStub(self._channels[current])
            if len(self._left) > MAX_LEFT_CHANNELS:
                self._left.pop(0).close()
        self._current = (current + 1) % len(self._stubs)

    def close(self) -> None:
        """Closes all channels."""
        for channel in [*self._channels, *self._left]:
            channel.close()

    def _open(self, position: int) -> grpc.Channel:
        target, options = self._connection.targets[position], self._connection.options[position]
        if self._credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._credentials, options=options)


class Generation:
    """One generation under way: an iterator of deltas and a context manager.

    It starts with the first delta asked for and ends with its iteration, `wait`, or `close`. Read it in one thread;
    `cancel` and `close` may come from any. Errors carry what had arrived as `partial`.
    """

    def __init__(
        self,
        gateways: Gateways,
        request: pb.GenerateRequest,
        timeout: float | None,
        retry: RetryPolicy,
        cancel: Callable[[str], CancelOutcome],
    ) -> None:
        self._cancel = cancel
        self._gateways = gateways
        self._state = StreamState(request)
        self._timeout = timeout
        self._retry = retry
        self._recovery: Recovery | None = None
        self._call: Any = None
        self._is_attached = False
        self._next_call = NextCall.GENERATE
        self._over = threading.Event()

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

    def wait(self) -> Completion:
        """Receives the rest and returns the whole. Raises ChairliftError."""
        for _ in self:
            pass
        if not self._state.is_success:
            raise RequestCancelledError("the generation was closed")
        return self.completion

    def cancel(self) -> CancelOutcome:
        """Asks the server to end the request; whoever iterates then meets RequestCancelledError."""
        return self._cancel(self.request_id)

    def close(self) -> None:
        """Ends the stream on this side, and with it the request.

        One with a `detach_grace` is cancelled by a call of its own; where no server answers, it ends after that time.
        """
        was_over = self._over.is_set()
        self._over.set()
        if not was_over:
            self._abandon()

    def _abandon(self) -> None:
        if self._call is None:
            return
        self._call.cancel()
        if outlives_its_stream(self._state.request):
            with contextlib.suppress(ChairliftError):
                self.cancel()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._over.is_set():
            try:
                event = self._receive()
                delta = None if event is None else self._state.on_event(event)
            except ChairliftError as error:
                self._over.set()
                if isinstance(error, StreamCorruptError):
                    self._abandon()
                elif self._call is not None:
                    self._call.cancel()
                error.request_id = self.request_id
                error.partial = self.completion
                raise
            if event is None:
                self._over.set()
            elif delta is not None:
                return delta
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> pb.GenerationEvent | None:
        """The next event, over broken streams if need be; None at the proper end. Raises ChairliftError."""
        while True:
            error: ChairliftError | None = None
            try:
                if not self._is_attached:
                    self._attach()
                event: pb.GenerationEvent = next(self._call).event
                return event
            except StopIteration:
                pass
            except grpc.RpcError as failure:
                if self._over.is_set():
                    raise RequestCancelledError("the generation was closed") from None
                error = error_from(failure)
            if not self._recover(error):
                return None

    def _attach(self) -> None:
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
        self._is_attached = True
        if self._over.is_set():
            self._call.cancel()

    def _recover(self, error: ChairliftError | None) -> bool:
        """Whether the stream goes on after its end; raises what ended it badly."""
        self._is_attached = False
        assert self._recovery is not None
        step = self._recovery.after_stream_end(self._state, error, time.monotonic(), jitter())
        if step is None:
            return False
        self._next_call = step.call
        self._gateways.turn_from_current(error)
        if self._over.wait(step.pause_s):
            raise RequestCancelledError("the generation was closed")
        return True


def error_from(failure: grpc.RpcError) -> ChairliftError:
    """The typed error of a failed call."""
    assert isinstance(failure, grpc.Call), "every failed call is also the call itself"
    return error_from_status(failure.code(), failure.details(), failure.trailing_metadata())
