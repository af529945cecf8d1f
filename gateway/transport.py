"""What a call came by, in the words of logs and of OpenTelemetry's conventions. Knows nothing of the call itself."""

from typing import ClassVar

import msgspec


class OverGrpc(msgspec.Struct, frozen=True):
    """gRPC: the method's name says all."""

    name: ClassVar[str] = "grpc"


class OverHttp(msgspec.Struct):
    """One request of HTTP."""

    name: ClassVar[str] = "http"
    method: str
    scheme: str
    path: str
    """As the server's routes have it; a path with a parameter is no call that is observed."""
    status: int | None = None
    """Once it has been sent: what fails after that does not change it."""


Transport = OverGrpc | OverHttp
