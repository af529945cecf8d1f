"""The two gRPC ports: which methods, health and reflection they serve, and with which bounds.

Both run on one event loop. Keepalive agrees with what the client library does, so that no client is turned away for
pinging too often.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chairlift.runtime.addresses import AddressError
from chairlift.runtime.settings import GatewaySettings
from chairlift.v1 import inference_pb2, ops_pb2
from gateway.call import Call, Method, Observer
from gateway.gate import Admission, Gate
from gateway.security.authenticator import Authenticator
from gateway.security.guard import Guard
from gateway.security.tls import ServerTls

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
OPS = ops_pb2.DESCRIPTOR.services_by_name["OpsService"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_ADMISSIONS = {"Generate": Admission.NEW_WORK, "Cancel": Admission.ALWAYS}

ServeMethod = Callable[[Any, Call], Awaitable[Message | None]]

_MAX_METADATA_BYTES = 16 << 10
_PENDING_REQUESTS = 20_000
"""grpc stalls near 7,000 open streams with its default."""


class Health:
    """What the standard health service says, on both ports."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def set_live(self) -> None:
        """The process serves."""
        await self.servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        await self.servicer.set(OPS.full_name, health_pb2.HealthCheckResponse.SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Whether requests are taken."""
        serving = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        await self.servicer.set(INFERENCE.full_name, serving)


def make_server(
    service: ServiceDescriptor,
    methods: Mapping[str, ServeMethod],
    gate: Gate,
    standard_health: Health,
    settings: GatewaySettings,
    authenticator: Authenticator,
    observer: Observer | None = None,
) -> grpc.aio.Server:
    """A server, without a port yet, of `methods` by name: exactly those that the contract declares.

    Nothing on it is reached but through its guard. `observer` hears of streams.
    """
    differing = methods.keys() ^ {method.name for method in service.methods}
    if differing:
        raise ValueError(f"{service.full_name}: served and declared methods differ in {sorted(differing)}")
    guarded = {
        f"/{service.full_name}/{method.name}": make_method(method, methods, gate, settings, observer)
        for method in service.methods
    }
    guard = Guard(authenticator, guarded, _open_services(settings))
    server = grpc.aio.server(interceptors=(guard,), options=_options(settings))
    health_pb2_grpc.add_HealthServicer_to_server(standard_health.servicer, server)
    if settings.reflection:
        reflection.enable_server_reflection((service.full_name, _HEALTH, reflection.SERVICE_NAME), server)
    return server


def make_method(
    method: MethodDescriptor,
    methods: Mapping[str, ServeMethod],
    gate: Gate,
    settings: GatewaySettings,
    observer: Observer | None,
) -> Method[Any]:
    """The declared method as each front serves it. `observer` hears of streams."""
    return Method(
        method.name,
        GetMessageClass(method.input_type),
        methods[method.name],
        gate,
        is_stream=method.server_streaming,
        max_request_bytes=settings.max_request_bytes,
        observer=observer if method.server_streaming else None,
        admission=_ADMISSIONS.get(method.name, Admission.SERVED),
    )


def bind(server: grpc.aio.Server, address: str, setting: str, tls: ServerTls | None) -> int:
    """The port that `server` has got on `address`. Raises AddressError."""
    try:
        port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise AddressError(f"{setting} = {address}: cannot be listened on; is the port in use?")
    return port


def _open_services(settings: GatewaySettings) -> Iterator[str]:
    if settings.health_without_auth:
        yield _HEALTH
    if settings.reflection_without_auth:
        yield reflection.SERVICE_NAME


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    age: list[tuple[str, int]] = []
    if settings.max_connection_age_s:
        age = [
            ("grpc.max_connection_age_ms", round(settings.max_connection_age_s * 1000)),
            ("grpc.max_connection_age_grace_ms", round(settings.max_connection_age_grace_s * 1000)),
        ]
    return [
        *age,
        # Somewhat more than is accepted: a request that is a little too large gets a typed error.
        ("grpc.max_receive_message_length", 2 * settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.server.max_pending_requests", max(_PENDING_REQUESTS, 2 * settings.max_concurrent_streams)),
        ("grpc.server.max_pending_requests_hard_limit", max(_PENDING_REQUESTS, 3 * settings.max_concurrent_streams)),
        ("grpc.keepalive_time_ms", round(settings.keepalive_time_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", round(settings.min_client_ping_interval_s * 1000)),
    ]
