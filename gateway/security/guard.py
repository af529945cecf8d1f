"""Stands before every method of every service of a port: who calls is known before a byte of the request is read.

What is not named here is refused: a service that somebody adds to the server is behind the same door.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import grpc
import grpc.aio

from gateway.errors.api_error import ApiError, GatewayReason
from gateway.errors.status import to_wire
from gateway.security.authenticator import Authenticator
from gateway.security.principal import NOBODY, Principal


class GuardedMethod(Protocol):
    """A method of ours, made into a handler for one call."""

    def handler(self, principal: Principal) -> "grpc.RpcMethodHandler[Any, Any]":
        """Serves the call of `principal`."""

    def refusal(self, error: ApiError) -> "grpc.RpcMethodHandler[Any, Any]":
        """Ends the call with `error`."""


class Guard(grpc.aio.ServerInterceptor):
    """Lets calls through to our methods, to open services, and to the rest for whoever has credentials."""

    def __init__(
        self, authenticator: Authenticator, methods: Mapping[str, GuardedMethod], open_services: Iterable[str]
    ) -> None:
        """`methods` by full name (``/package.Service/Method``); `open_services` ask for no credentials."""
        self._authenticator = authenticator
        self._methods = methods
        self._open = frozenset(open_services)

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of a call; one that refuses it where it is not let in."""
        full_name = handler_call_details.method
        service, _, name = full_name.removeprefix("/").rpartition("/")
        method = self._methods.get(full_name)
        try:
            principal = self._admit(service, name, handler_call_details)
        except ApiError as error:
            return method.refusal(error) if method is not None else _refusal(error)
        if method is not None:
            return method.handler(principal)
        return await continuation(handler_call_details) or _refusal(
            ApiError(GatewayReason.NOT_IMPLEMENTED, "this server has no such method")
        )

    def _admit(self, service: str, name: str, details: grpc.HandlerCallDetails) -> Principal:
        if service in self._open:
            return NOBODY
        headers = {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}
        principal = self._authenticator.authenticate(headers)
        principal.check_method(service, name)
        return principal


def _refusal(error: ApiError) -> "grpc.RpcMethodHandler[Any, Any]":
    """Ends any kind of call at once, whatever it sends."""
    status = to_wire(error)

    async def refuse(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await context.abort(status.code, status.message, status.trailing)

    return grpc.stream_stream_rpc_method_handler(refuse)
