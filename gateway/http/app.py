"""The paths of the HTTP port, and what is answered where there is none."""

from collections.abc import Callable, Mapping

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.runtime.probes import EXPOSITION_TYPE, ProcessState
from chairlift.v1 import inference_pb2 as pb
from gateway.call import Method
from gateway.errors.api_error import ApiError
from gateway.errors.frames import innermost_frames
from gateway.gate import Gate
from gateway.http.connection import headers_of
from gateway.http.endpoint import GenerateEndpoint, HttpLimits
from gateway.http.models import ModelsEndpoint
from gateway.http.openai_errors import HttpError, plain_error, to_http
from gateway.http.openai_requests import read_chat, read_completion
from gateway.security.authenticator import Authenticator


class Front:
    """What the HTTP front needs of the gateway."""

    def __init__(
        self,
        *,
        generate: Method[pb.GenerateRequest],
        list_models: Method[pb.ListModelsRequest],
        get_model: Method[pb.GetModelRequest],
        gate: Gate,
        authenticator: Authenticator,
        limits: HttpLimits,
        state: ProcessState,
        exposition: Callable[[], str],
    ) -> None:
        """`exposition` is for a scrape."""
        self.generate = generate
        self.list_models = list_models
        self.get_model = get_model
        self.gate = gate
        self.authenticator = authenticator
        self.limits = limits
        self.state = state
        self.exposition = exposition


def make_app(front: Front) -> ASGIApp:
    """The application of the port."""
    models = ModelsEndpoint(front.list_models, front.get_model, front.gate, front.authenticator)
    readers = {"/v1/chat/completions": read_chat, "/v1/completions": read_completion}
    generating = [
        Route(
            path,
            GenerateEndpoint(read, front.generate, front.gate, front.authenticator, front.limits),
            methods=["POST"],
        )
        for path, read in readers.items()
    ]
    routes = [
        *generating,
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", models, methods=["GET"]),
        *_probe_routes(front),
    ]
    return _LastLine(Starlette(routes=routes, exception_handlers={HTTPException: _refuse_path}))


def _probe_routes(front: Front) -> list[Route]:
    async def livez(_: Request) -> Response:
        return _state_response(*front.state.live())

    async def readyz(_: Request) -> Response:
        return _state_response(*front.state.ready())

    async def metrics(request: Request) -> Response:
        try:
            front.authenticator.authenticate(headers_of(request.scope))
        except ApiError as error:
            return _response(to_http(error))
        return Response(front.exposition(), headers={"content-type": EXPOSITION_TYPE})

    return [
        Route("/livez", livez),
        # What servers of this protocol call it.
        Route("/healthz", livez),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
    ]


def _state_response(good: bool, reason: str) -> Response:
    return PlainTextResponse("ok\n" if good else f"{reason}\n", 200 if good else 503)


async def _refuse_path(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, code = _HTTP_MESSAGES.get(error.status_code, ("the request cannot be served", "http_error"))
    return _response(plain_error(error.status_code, message, code), error.headers)


_HTTP_MESSAGES = {
    404: ("this server has no such path", "unknown_path"),
    405: ("this path takes another method", "method_not_allowed"),
}


def _response(error: HttpError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        error.body, error.status, {**(headers or {}), **dict(error.headers), "content-type": "application/json"}
    )


class _LastLine:
    """A fault of ours ends one request. What it says is left out of the log: it may quote a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001  # the last line
            self._log.error("http_request_failed", error=type(error).__name__, frames=innermost_frames(error))
            if not has_begun:
                failed = plain_error(500, "a fault of the server", "internal")
                await _response(failed)(scope, receive, send)
