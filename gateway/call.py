"""One call as the methods see it, and how a method becomes a gRPC handler.

Everything that holds for each method stands here once: bytes that are no message, errors as statuses, faults of ours,
admission, what every answer carries. A method is a coroutine that takes a message and a `Call`. A call may have come by
gRPC or by HTTP; what is particular to either is its `Connection`.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message
from opentelemetry.trace import INVALID_SPAN, Span, format_trace_id

from chairlift.ipc.common import Reason
from chairlift.runtime.tracing import headers_of
from gateway.errors.api_error import ApiError, GatewayReason
from gateway.errors.frames import innermost_frames
from gateway.errors.status import to_wire
from gateway.gate import Admission, Gate
from gateway.security.principal import NOBODY, Principal
from gateway.streams.generation import Generation
from gateway.transport import OverGrpc, Transport

RequestT = TypeVar("RequestT", bound=Message)

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACESTATE_CHARS = 512
_MARGIN_SHARE = 0.05
_MAX_MARGIN_S = 0.025
_MIN_MARGIN_S = 0.003
"""A typed end has to reach the client before its own clock ends the call: somewhat more than the way there takes."""


class Connection(Protocol):
    """What a call came by."""

    @property
    def transport(self) -> Transport:
        """gRPC or HTTP."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers of the call, names in lower case."""

    @property
    def peer(self) -> str:
        """The caller's address."""

    def seconds_left(self) -> float | None:
        """Until the call's deadline; None without one."""

    async def write(self, message: bytes) -> None:
        """Sends one encoded message of a stream; returns when the next may follow."""


class GrpcConnection:
    """A call that came by gRPC."""

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        self._context = context
        self.transport: Transport = OverGrpc()
        self.metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self.write = context.write

    @property
    def peer(self) -> str:
        """The caller's address."""
        return str(self._context.peer())

    def seconds_left(self) -> float | None:
        """Until the call's deadline; None without one."""
        left: float | None = self._context.time_remaining()
        return left


class Call:
    """What a method may know of its call, and what it may add to the answer."""

    def __init__(self, connection: Connection, principal: Principal) -> None:
        self._connection = connection
        self.transport = connection.transport
        """What it came by."""
        self.principal = principal
        """Who calls, and what they may do."""
        self.metadata = connection.metadata
        """Headers of the call."""
        self._trailing: dict[str, str] = {}
        traceparent = self.metadata.get("traceparent", "")
        found = _TRACEPARENT.fullmatch(traceparent)
        self.traceparent = traceparent if found is not None else ""
        """W3C trace context that what the call starts belongs to: the caller's, or that of `span`. May be empty."""
        tracestate = self.metadata.get("tracestate", "")
        self.tracestate = tracestate if found is not None and len(tracestate) <= _MAX_TRACESTATE_CHARS else ""
        """Goes with `traceparent`."""
        self.trace_id = found[1] if found is not None else secrets.token_hex(16)
        """Names the call in logs and in errors of ours."""
        self.arrived_at = time.monotonic()
        left_s = connection.seconds_left()
        self.margin_s = 0.0 if left_s is None else end_margin_s(left_s)
        """How long before its client's deadline the call is to end."""
        self.ends_at = None if left_s is None else self.arrived_at + left_s - self.margin_s
        """When it is to end at the latest, in seconds of the monotonic clock; None without a deadline."""
        self.operation = "text_completion"
        """As OpenTelemetry's conventions name what a Generate asks for; a chat says so itself."""
        self.generation: Generation | None = None
        """What the call streams, once there is one."""
        self.failure = ""
        """Reason of an end that is not OK."""
        self.span: Span = INVALID_SPAN
        """The call in its trace; an invalid one while nothing is traced."""
        self.write = connection.write
        """Sends one encoded message of a stream."""

    def trace_as(self, span: Span) -> None:
        """From now on the call is `span`, and what it starts goes below that."""
        self.span = span
        self.traceparent, self.tracestate = headers_of(span)
        self.trace_id = format_trace_id(span.get_span_context().trace_id)

    @property
    def peer(self) -> str:
        """The caller's address."""
        return self._connection.peer

    def seconds_left(self) -> float | None:
        """Until the call's deadline; None without one."""
        return self._connection.seconds_left()

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """Metadata that goes with the end."""
        return tuple(self._trailing.items())

    def add_trailing(self, key: str, value: str) -> None:
        """Metadata that goes with the end of the call, whatever that is; left out where no header can carry it."""
        if value and value.isascii() and value.isprintable():
            self._trailing[key] = value


class Observer(Protocol):
    """Who hears of calls."""

    def began(self, method: str, call: Call) -> None:
        """The call is here; nothing of it is checked yet."""

    def ended(self, method: str, call: Call) -> None:
        """The call is over."""


class _Malformed:
    """Stands for bytes that are no message."""


class _TooLarge(NamedTuple):
    """Stands for bytes that are not even read as a message."""

    num_bytes: int


class Method(Generic[RequestT]):
    """Makes the handler of one method of a service."""

    def __init__(
        self,
        name: str,
        request_type: type[RequestT],
        serve: Callable[[RequestT, Call], Awaitable[Message | None]],
        gate: Gate,
        *,
        is_stream: bool,
        max_request_bytes: int,
        observer: Observer | None = None,
        admission: Admission = Admission.SERVED,
    ) -> None:
        """`serve` returns the answer; a stream's writes to the call and returns None."""
        self._name = name
        self._request_type = request_type
        self._serve = serve
        self._gate = gate
        self._is_stream = is_stream
        self._max_request_bytes = max_request_bytes
        self._observer = observer
        self._admission = admission
        self._log = structlog.get_logger(method=name)

    def handler(self, principal: Principal) -> "grpc.RpcMethodHandler[Any, Any]":
        """For one call, by `principal`."""
        make = grpc.unary_stream_rpc_method_handler if self._is_stream else grpc.unary_unary_rpc_method_handler
        serialize = None if self._is_stream else _serialize
        call = partial(self._call, principal)
        return make(call, request_deserializer=self._parse, response_serializer=serialize)

    def refusal(self, error: ApiError) -> "grpc.RpcMethodHandler[Any, Any]":
        """For a call that is not let in. Its bytes are not even read as a message."""
        make = grpc.unary_stream_rpc_method_handler if self._is_stream else grpc.unary_unary_rpc_method_handler
        return make(partial(self._refuse, error))

    def _parse(self, packed: bytes) -> RequestT | _Malformed | _TooLarge:
        if len(packed) > self._max_request_bytes:
            return _TooLarge(len(packed))
        try:
            return self._request_type.FromString(packed)
        except DecodeError:
            return _Malformed()

    async def _call(
        self,
        principal: Principal,
        request: RequestT | _Malformed | _TooLarge,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> Message | None:
        call = Call(GrpcConnection(context), principal)
        self._gate.enter()
        try:
            answer = await self.run(request, call)
            context.set_trailing_metadata(call.trailing)
            return answer
        except ApiError as error:
            await _abort(context, error, call)
            raise AssertionError("abort raises") from None
        finally:
            self._gate.leave()

    async def _refuse(self, error: ApiError, _: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        call = Call(GrpcConnection(context), NOBODY)
        self.refuse(error, call)
        await _abort(context, error, call)

    def refuse(self, error: ApiError, call: Call) -> None:
        """A call, whatever it came by, ends with `error` before it is served; that is told to the caller elsewhere."""
        call.failure = error.reason
        if self._observer is not None:
            self._observer.began(self._name, call)
            self._observer.ended(self._name, call)

    async def run(self, request: RequestT | _Malformed | _TooLarge, call: Call) -> Message | None:
        """Serves one call, whatever it came by; the caller counts it in the gate.

        Raises ApiError, also for a fault of ours, and CancelledError.
        """
        if self._observer is not None:
            self._observer.began(self._name, call)
        try:
            return await self._serve_in_time(request, call)
        except ApiError as error:
            call.failure = error.reason
            raise
        except asyncio.CancelledError:
            left_s = call.seconds_left()
            call.failure = Reason.DEADLINE if left_s is not None and left_s <= 0 else Reason.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001  # the last line: a fault of ours ends one call and no process
            call.failure = Reason.INTERNAL
            self._log.error(
                "call_failed", trace_id=call.trace_id, error=type(error).__name__, frames=innermost_frames(error)
            )
            raise ApiError(Reason.INTERNAL, f"a fault of the server, trace {call.trace_id}") from None
        finally:
            if self._observer is not None:
                self._observer.ended(self._name, call)

    async def _serve_in_time(self, request: RequestT | _Malformed | _TooLarge, call: Call) -> Message | None:
        if call.ends_at is None:
            return await self._serve_counted(request, call)
        # Whatever ends by itself at its deadline gets half of the margin to say so.
        scope = asyncio.timeout(max(0.0, call.ends_at + call.margin_s / 2 - time.monotonic()))
        try:
            async with scope:
                return await self._serve_counted(request, call)
        except TimeoutError:
            if not scope.expired():
                raise
            raise ApiError(Reason.DEADLINE, "the call's deadline has passed") from None

    async def _serve_counted(self, request: RequestT | _Malformed | _TooLarge, call: Call) -> Message | None:
        match request:
            case _Malformed():
                raise ApiError(GatewayReason.MALFORMED_REQUEST, f"the bytes are no {self._request_type.__name__}")
            case _TooLarge(num_bytes):
                limits = (("max_request_bytes", str(self._max_request_bytes)),)
                message = f"{num_bytes} bytes are more than a request may have, {self._max_request_bytes}"
                raise ApiError(GatewayReason.REQUEST_TOO_LARGE, message, limits=limits)
        self._gate.check(self._admission)
        if not self._is_stream:
            return await self._serve(request, call)
        self._gate.num_streams += 1
        try:
            return await self._serve(request, call)
        finally:
            self._gate.num_streams -= 1


def end_margin_s(left_s: float) -> float:
    """How long before a deadline that is `left_s` away a call should end."""
    return min(max(left_s * _MARGIN_SHARE, _MIN_MARGIN_S), _MAX_MARGIN_S, max(0.0, left_s) / 2)


async def _abort(context: "grpc.aio.ServicerContext[Any, Any]", error: ApiError, call: Call) -> None:
    """Ends the call with the status of `error`; raises, as the library has it."""
    status = to_wire(error, call.trace_id)
    await context.abort(status.code, status.message, (*call.trailing, *status.trailing))


def _serialize(message: Message) -> bytes:
    return bytes(message.SerializeToString())
