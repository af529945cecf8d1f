"""The shipped service config does for a plain stub what it says: spreads, leaves out who is not ready, retries."""

import json
from collections.abc import AsyncIterator
from importlib.resources import files

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from chairlift.v1 import inference_pb2, inference_pb2_grpc

CONFIG = files("chairlift.v1").joinpath("service_config.json").read_text()
SERVICE = "chairlift.v1.InferenceService"


class Gateway:
    """Refuses a number of calls at the door, as a draining or full gateway does, then serves."""

    def __init__(self, refusals: int, code: grpc.StatusCode, pushback_ms: int | None) -> None:
        self._refusals = refusals
        self._code = code
        self._pushback = () if pushback_ms is None else (("grpc-retry-pushback-ms", str(pushback_ms)),)
        self.calls = 0

    async def generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.calls += 1
        if self.calls <= self._refusals:
            await context.abort(self._code, "refused", self._pushback)
        accepted = inference_pb2.Accepted(request_id=request.request_id)
        yield inference_pb2.GenerateResponse(event=inference_pb2.GenerationEvent(accepted=accepted))


class Running:
    """A real server on a port of its own, with health."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.health = HealthServicer()
        self.server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(
            gateway.generate,
            request_deserializer=inference_pb2.GenerateRequest.FromString,
            response_serializer=inference_pb2.GenerateResponse.SerializeToString,
        )
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Generate": handler})])
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def start(self, ready: bool = True) -> None:
        status = health_pb2.HealthCheckResponse
        await self.health.set(SERVICE, status.SERVING if ready else status.NOT_SERVING)
        await self.server.start()


async def generate(*servers: Running) -> str:
    """One Generate over all servers' addresses, by the raw stub and the shipped config; its request id."""
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    options = [("grpc.service_config", CONFIG)]
    async with grpc.aio.insecure_channel(f"ipv4:{addresses}", options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(request_id="once", text="Hello")
        async for response in stub.Generate(request, timeout=20):
            return response.event.accepted.request_id
    raise AssertionError("the stream ended without an event")


@pytest.fixture
async def started() -> AsyncIterator[list[Running]]:
    servers: list[Running] = []
    yield servers
    for server in servers:
        await server.server.stop(grace=None)


async def start(started: list[Running], gateway: Gateway, ready: bool = True) -> Running:
    running = Running(gateway)
    started.append(running)
    await running.start(ready)
    return running


def test_it_names_every_method_of_the_service_and_no_other() -> None:
    named = [name for config in json.loads(CONFIG)["methodConfig"] for name in config["name"]]
    methods = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods
    assert named == [{"service": SERVICE, "method": method.name} for method in methods]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_call_refused_at_the_door_is_tried_again_when_the_server_says(
    started: list[Running], code: grpc.StatusCode
) -> None:
    server = await start(started, Gateway(refusals=2, code=code, pushback_ms=1))
    assert await generate(server) == "once"
    assert server.gateway.calls == 3


@pytest.mark.parametrize(
    ("code", "pushback_ms"),
    [(grpc.StatusCode.RESOURCE_EXHAUSTED, -1), (grpc.StatusCode.INVALID_ARGUMENT, None)],
)
async def test_a_call_for_which_a_retry_is_pointless_is_tried_once(
    started: list[Running], code: grpc.StatusCode, pushback_ms: int | None
) -> None:
    server = await start(started, Gateway(refusals=9, code=code, pushback_ms=pushback_ms))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(server)
    assert caught.value.code() is code
    assert server.gateway.calls == 1


async def test_calls_go_to_the_gateway_that_is_ready(started: list[Running]) -> None:
    none = grpc.StatusCode.OK
    draining = await start(started, Gateway(0, none, None), ready=False)
    ready = await start(started, Gateway(0, none, None))
    for _ in range(3):
        assert await generate(draining, ready) == "once"
    assert (draining.gateway.calls, ready.gateway.calls) == (0, 3)
