"""One HTTP request that generates: who sends it, what it asks, then Generate's events as SSE or as one answer.

A client that goes away cancels the call, as over gRPC. Nothing is sent before the request is in, so that a refusal has
a status of its own; what goes wrong later is an event of the stream, without the closing ``[DONE]``.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
from starlette.types import Message, Receive, Scope, Send

from chairlift.ipc.common import Reason
from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call, Method
from gateway.errors.api_error import ApiError
from gateway.gate import Gate
from gateway.http.body import read_body
from gateway.http.connection import HttpConnection, headers_of, write_nothing
from gateway.http.openai_answers import Answer
from gateway.http.openai_errors import HttpError, encode_error, to_http
from gateway.http.openai_requests import Asked, name_as_asked
from gateway.security.authenticator import Authenticator
from gateway.security.principal import INFERENCE_SERVICE, NOBODY, Principal

TRANSPORT = "chairlift.transport"
"""Where the server puts a connection's transport in the scope's state."""

_JSON = ((b"content-type", b"application/json"),)
_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies like nginx pass the events on as they come.
    (b"x-accel-buffering", b"no"),
)


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a request may be and take."""

    max_body_bytes: int
    read_timeout_s: float


class GenerateEndpoint:
    """The ASGI application of one path."""

    def __init__(
        self,
        read: Callable[[bytes], Asked],
        method: Method[pb.GenerateRequest],
        gate: Gate,
        authenticator: Authenticator,
        limits: HttpLimits,
    ) -> None:
        """`read` makes a request of a body."""
        self._read = read
        self._method = method
        self._gate = gate
        self._authenticator = authenticator
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        self._gate.enter()
        arrived_at = time.monotonic()
        try:
            exchange = await self._begin(scope, receive, send)
        except ApiError as error:
            call = Call(HttpConnection(scope, write_nothing), NOBODY)
            call.arrived_at = arrived_at
            self._method.refuse(error, call)
            await send_error(send, to_http(error, call.trace_id))
        else:
            if exchange is not None:
                await exchange.run(self._method, receive)
        finally:
            self._gate.leave()

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> "_Exchange | None":
        """None where the client has gone. Raises ApiError for a request that is not let in, or is none."""
        # Before a byte of the body is read.
        principal = admit(self._authenticator, scope, "Generate")
        body = await read_body(scope, receive, self._limits.max_body_bytes, self._limits.read_timeout_s)
        return None if body is None else _Exchange(self._read(body), scope, send, principal)


def admit(authenticator: Authenticator, scope: Scope, method: str) -> Principal:
    """Who sends a request that comes to that method of the inference service. Raises ApiError."""
    principal = authenticator.authenticate(headers_of(scope))
    principal.check_method(INFERENCE_SERVICE, method)
    return principal


class _Exchange:
    """One request and its answer."""

    def __init__(self, asked: Asked, scope: Scope, send: Send, principal: Principal) -> None:
        self._asked = asked
        self._scope = scope
        self._send = send
        self._answer = Answer(asked)
        connection = HttpConnection(scope, self._write)
        self._transport = connection.transport
        self._call = Call(connection, principal)
        self._has_begun = False

    async def run(self, method: Method[pb.GenerateRequest], receive: Receive) -> None:
        """Until the answer is sent, or nobody is there for it."""
        serving = asyncio.create_task(self._serve(method))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also where the server ends this request: what it started ends with it.
            for task in (serving, leaving):
                task.cancel()
            ended = await asyncio.gather(serving, leaving, return_exceptions=True)
        if isinstance(ended[0], Exception):
            raise ended[0]

    async def _serve(self, method: Method[pb.GenerateRequest]) -> None:
        try:
            await method.run(self._asked.request, self._call)
        except ApiError as error:
            await self._end_badly(name_as_asked(error, is_chat=self._asked.is_chat))
            return
        if self._asked.is_stream:
            events = b"".join(_event(chunk) for chunk in self._answer.last())
            await self._send({"type": "http.response.body", "body": events + b"data: [DONE]\n\n"})
            return
        await send_json(self._send, self._answer.whole(), self._trailing())

    async def _write(self, packed: bytes) -> None:
        """One message of the generation."""
        events = b"".join([_event(chunk) for chunk in self._answer.take(packed)])
        if not self._asked.is_stream:
            return
        if not self._has_begun:
            request_id = self._answer.request_id.encode("latin-1")
            self._has_begun, self._transport.status = True, 200
            headers = [*_SSE, (b"x-request-id", request_id)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if events:
            await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def _end_badly(self, error: ApiError) -> None:
        if not self._has_begun:
            await send_error(self._send, to_http(error, self._call.trace_id), self._trailing())
        elif error.reason == Reason.SLOW_CLIENT:
            # It does not read: a word to it would wait as long as what waits already.
            self._scope["state"][TRANSPORT].abort()
        else:
            failure = to_http(error, self._call.trace_id)
            event = _event(encode_error(error, failure.status))
            await self._send({"type": "http.response.body", "body": event})

    def _trailing(self) -> tuple[tuple[bytes, bytes], ...]:
        return tuple((name.encode(), value.encode("latin-1")) for name, value in self._call.trailing)


async def send_json(send: Send, body: bytes, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Answers with a JSON object."""
    await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, *more]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Answers with an error."""
    headers = [*_JSON, *more, *((name.encode(), value.encode("latin-1")) for name, value in error.headers)]
    if error.status == 413:
        # The rest of the body is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body})


async def _left(receive: Receive) -> None:
    """Until the client has gone."""
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()


def _event(packed: bytes) -> bytes:
    return b"data: " + packed + b"\n\n"
