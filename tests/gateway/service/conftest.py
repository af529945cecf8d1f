"""A whole gateway on free ports, and a stand-in for the scheduler that does what a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
import pytest
import pytest_asyncio
import zmq
from google.rpc import error_details_pb2, status_pb2

from chairlift.ipc import front
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, FinishReason, HelloWanted
from chairlift.ipc.tokens import pack_u32, pack_u64
from chairlift.runtime.model_source import ModelSource, fingerprint_model
from chairlift.runtime.process import StopSignal
from chairlift.runtime.settings import GatewaySettings, IpcSettings, Settings
from chairlift.runtime.sockets import EndpointError, bind_router, gateway_endpoint, remove_socket_file
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc
from chairlift.v1 import ops_pb2_grpc
from gateway.service import GatewayService
from gateway.text.model_text import ModelText

WAIT_S = 20.0
LIMITS = front.ReplicaLimits(
    max_num_seqs=8, max_num_batched_tokens=64, max_num_queued_reqs=100, max_num_queued_tokens=10_000, block_size=16
)
MessageT = TypeVar("MessageT")


class StandIn:
    """Speaks the gateway link as a scheduler does. Greets by itself; everything else is up to the test."""

    def __init__(self, endpoint: str, settings: IpcSettings, model: front.ModelInfo, *, epoch: int = 7) -> None:
        self.endpoint = endpoint
        self.model: front.ModelInfo | None = model
        self.epoch = epoch
        self.replica_id = "replica-0"
        self.ready = True
        self.draining = False
        self.greets = True
        self.answer_hello: Any = None
        """Sent in place of the hello, when set."""
        self.received: list[Any] = []
        self.num_beats = 0
        """That were heard."""
        self.hellos: list[front.GatewayHello] = []
        self.identity = b""
        self.load = front.Load()
        self._settings = settings
        self._in = front.to_scheduler_codec()
        self._out = front.to_gateway_codec()
        self._arrived = asyncio.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._beats: asyncio.Task[None] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    async def start(self) -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while self._socket is None:
            try:
                self._socket = bind_router(self._context, self.endpoint, self._settings)
            except EndpointError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.01)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._drain)
        self._beats = asyncio.create_task(self._beat())
        self._drain()

    async def stop(self) -> None:
        """Dies: nothing is said."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close(linger=0)
            self._socket = None
        self._context.term()
        remove_socket_file(self.endpoint)

    async def start_again(self, epoch: int | None = None) -> None:
        """A new life at the same place."""
        self.epoch = epoch or self.epoch + 1
        self.received, self.hellos, self.identity = [], [], b""
        self._context = zmq.Context()
        await self.start()

    def be_quiet(self) -> None:
        """Does not beat any more."""
        assert self._beats is not None
        self._beats.cancel()

    def freeze(self) -> None:
        """Neither beats nor hears any more."""
        assert self._socket is not None
        self.be_quiet()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())

    # ---- hearing ----

    async def next(self, kind: type[MessageT]) -> MessageT:
        """The oldest message of that kind that was not asked for yet."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for position, message in enumerate(self.received):
                    if isinstance(message, kind):
                        del self.received[position]
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    async def wait_for_gateway(self, count: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.hellos) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def heard(self, kind: type[MessageT]) -> list[MessageT]:
        return [message for message in self.received if isinstance(message, kind)]

    def _drain(self) -> None:
        while self._socket is not None:
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(identity, self._in.decode(frame))

    def _take(self, identity: bytes, message: Any) -> None:
        match message:
            case front.GatewayHello():
                self.identity = identity
                self.hellos.append(message)
                if self.greets:
                    self.send(self.answer_hello or self._hello())
            case _ if identity != self.identity:
                self.send_to(identity, HelloWanted(self.epoch))
            case front.GatewayBeat():
                self.num_beats += 1
            case front.LoadQuery(query):
                self.send(front.LoadReply(query, self.epoch, self.ready, self.draining, self.load))
            case _:
                self.received.append(message)
        self._arrived.set()

    def _hello(self) -> front.SchedulerHello:
        return front.SchedulerHello(
            PROTOCOL_MAJOR,
            PROTOCOL_MINOR,
            self._in.tags,
            self.replica_id,
            self.epoch,
            LIMITS,
            self.ready,
            self.draining,
            self.model,
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            if self.identity:
                self.send(front.ReplicaBeat(self.epoch, self.load))

    # ---- saying ----

    def send(self, message: Any) -> None:
        self.send_to(self.identity, message)

    def send_to(self, identity: bytes, message: Any) -> None:
        self.send_frame(identity, self._out.encode(message))

    def send_frame(self, identity: bytes, frame: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.send_multipart((identity, frame), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
        asyncio.get_running_loop().call_soon(self._drain)

    def announce(self) -> None:
        self.send(front.ReplicaState(self.epoch, self.ready, self.draining, self.model))

    async def accept(self, **fields: Any) -> front.Submit:
        """Takes the next request in."""
        submit = await self.next(front.Submit)
        self.send(front.Accepted(submit.handle, **({"number": 1, "queue_position": 0} | fields)))
        return submit

    def tokens(self, handle: int, offset: int, *ids: int, **columns: Any) -> None:
        """Output of one choice."""
        counts = pack_u32([len(ids)]) if len(ids) != 1 else b""
        self.send(front.Deltas(pack_u64([handle]), pack_u32([offset]), pack_u32(ids), counts, **columns))

    def finish(self, handle: int, num_tokens: int, reason: FinishReason = FinishReason.LENGTH, **fields: Any) -> None:
        self.send(front.Finished(handle, reason, num_tokens, **({"request_ended": True} | fields)))


class Caller:
    """Stubs on both ports, and typed ends of calls."""

    def __init__(self, service: GatewayService) -> None:
        options = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options)
        self.ops_channel = grpc.aio.insecure_channel(f"127.0.0.1:{service.ops_port}", options=options)
        self.stub: Any = pb_grpc.InferenceServiceStub(self.channel)
        self.ops: Any = ops_pb2_grpc.OpsServiceStub(self.ops_channel)

    async def close(self) -> None:
        await self.channel.close()
        await self.ops_channel.close()

    @staticmethod
    async def events(call: Any) -> list[pb.GenerationEvent]:
        """All of a stream that ends well."""
        events = []
        async with asyncio.timeout(WAIT_S):
            while (response := await call.read()) is not grpc.aio.EOF:
                events.append(response.event)
        return events

    @staticmethod
    async def event(call: Any, kind: str) -> Any:
        """The next event, which is of that kind."""
        async with asyncio.timeout(WAIT_S):
            response = await call.read()
        assert response is not grpc.aio.EOF
        assert response.event.WhichOneof("event") == kind
        return getattr(response.event, kind)

    @staticmethod
    async def error(call: Any) -> "CallError":
        """How a call or stream ends that does not end well."""
        try:
            async with asyncio.timeout(WAIT_S):
                if hasattr(call, "read"):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                else:
                    await call
        except grpc.aio.AioRpcError:
            pass
        return CallError(await call.code(), await call.details(), dict(await call.trailing_metadata()))


class CallError:
    """A status with its details."""

    def __init__(self, code: grpc.StatusCode, message: str, trailing: dict[str, Any]) -> None:
        self.code = code
        self.message = message
        self.trailing = trailing
        self.info = error_details_pb2.ErrorInfo()
        self.retry = error_details_pb2.RetryInfo()
        self.bad_request = error_details_pb2.BadRequest()
        self.quota = error_details_pb2.QuotaFailure()
        self.num_details = 0
        packed = trailing.get("grpc-status-details-bin")
        if packed is not None:
            status = status_pb2.Status.FromString(packed)
            self.num_details = len(status.details)
            for detail in status.details:
                for target in (self.info, self.retry, self.bad_request, self.quota):
                    detail.Unpack(target)

    @property
    def fields(self) -> list[str]:
        return [violation.field for violation in self.bad_request.field_violations]


class Rig:
    """One gateway with one stand-in and one caller."""

    def __init__(self, service: GatewayService, scheduler: StandIn, caller: Caller, settings: Settings) -> None:
        self.service = service
        self.scheduler = scheduler
        self.caller = caller
        self.stub = caller.stub
        self.ops = caller.ops
        self.settings = settings
        self.stop = StopSignal()
        self.running: asyncio.Task[None] | None = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Polls until it holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  # whatever the condition is about sets no event
                await asyncio.sleep(0.005)


@pytest.fixture
def wide_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the deadline, so that on the busiest machine too the server is the first to end a call."""
    monkeypatch.setattr("gateway.call.end_margin_s", lambda left_s: left_s / 3)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ipc = IpcSettings(run_dir=str(tmp_path / "run"), heartbeat_interval_s=0.1, heartbeat_timeout_s=10.0)
    gateway = GatewaySettings(
        listen="127.0.0.1:0", ops_listen="127.0.0.1:0", metrics_listen="", drain_timeout_s=5.0, template_timeout_s=20.0
    )
    return Settings(ipc=ipc, gateway=gateway)


@pytest.fixture
def model_info(byte_model: ModelSource) -> front.ModelInfo:
    return front.ModelInfo(
        model="bytes",
        fingerprint=fingerprint_model(byte_model),
        vocab_size=260,
        max_model_len=128,
        eos_token_ids=(258,),
        kv_capacity_tokens=1024,
        dtype="float32",
        quantization="",
        device="cpu",
        deterministic=True,
        num_parameters=1,
    )


@pytest.fixture
def start_rig(
    settings: Settings, byte_model: ModelSource, byte_text: ModelText, model_info: front.ModelInfo
) -> Callable[..., Any]:
    """`async with start_rig(**gateway_settings) as rig:` runs a gateway until the block ends.

    Without `has_template` it needs no template process, and starts faster.
    """
    plain = msgspec.structs.replace(byte_text, template_source=None, template=None, guards=None)

    @asynccontextmanager
    async def start(
        *, has_template: bool = False, ipc: Any = None, tracing: Any = None, **changes: Any
    ) -> AsyncIterator[Rig]:
        own = msgspec.structs.replace(
            settings, gateway=msgspec.structs.replace(settings.gateway, **changes), ipc=ipc or settings.ipc
        )
        scheduler = StandIn(gateway_endpoint(own.ipc), own.ipc, model_info)
        await scheduler.start()
        service = GatewayService(own, byte_model, byte_text if has_template else plain, tracing)
        await service.start()
        rig = Rig(service, scheduler, Caller(service), own)
        rig.running = asyncio.create_task(service.run(rig.stop))
        try:
            await rig.until(lambda: service.state.ready()[0])
            yield rig
        finally:
            await rig.caller.close()
            rig.stop.request()
            async with asyncio.timeout(WAIT_S):
                await rig.running
            await service.close()
            rig.stop.close()
            await scheduler.stop()

    return start


@pytest_asyncio.fixture
async def rig(start_rig: Callable[..., Any]) -> AsyncIterator[Rig]:
    async with start_rig() as started:
        yield started


@pytest_asyncio.fixture
async def chat_rig(start_rig: Callable[..., Any]) -> AsyncIterator[Rig]:
    """One whose model has a chat template."""
    async with start_rig(has_template=True) as started:
        yield started


@pytest.fixture
def spell(byte_text: ModelText) -> Callable[[str], list[int]]:
    """Ids whose text is that string, byte by byte."""
    id_of = {byte_text.tokenizer.piece(token_id): token_id for token_id in range(256)}
    return lambda text: [id_of[bytes([byte])] for byte in text.encode()]
