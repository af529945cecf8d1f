"""What a call that came by HTTP came by."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.types import Scope

from gateway.transport import OverHttp


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Names in lower case, as the server gives them."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


class HttpConnection:
    """See `gateway.call.Connection`. Messages of its stream go to `write`."""

    def __init__(self, scope: Scope, write: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self.metadata = headers_of(scope)
        self.write = write
        self.transport = OverHttp(scope["method"], scope["scheme"], scope["path"])
        client = scope.get("client")
        self.peer = f"{client[0]}:{client[1]}" if client else ""

    def seconds_left(self) -> float | None:
        """HTTP has no deadline: the server's own bound holds."""
        return None


async def write_nothing(_: bytes) -> None:
    """For a call that has one answer and no stream."""
    raise AssertionError("no stream")
