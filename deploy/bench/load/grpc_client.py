"""Sends requests by Chairlift's gRPC contract, straight on the stubs: nothing between the wire and the clock.

The client library decides how to connect; it would also repeat what is refused, and here a refusal is seen as one.
Parses what it needs of each message and keeps no text.
"""

from pathlib import Path

import grpc
import grpc.aio
import msgspec
from google.rpc import error_details_pb2, status_pb2

from chairlift.client.connection import KEEPALIVE_S, Connection, Tls, make_connection
from chairlift.v1 import inference_pb2, inference_pb2_grpc
from deploy.bench.load.client import Call, TargetError, TargetModel
from deploy.bench.load.clock import Clock
from deploy.bench.load.record import Outcome, RequestRecord, ServerAccount, digest_tokens

_STATUS_KEY = "grpc-status-details-bin"
_REFUSALS = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)


class GrpcTarget(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server."""

    address: str
    """``host:port`` or another name that gRPC resolves."""
    api_key: str | None = None
    tenant_keys: dict[str, str] = {}
    """Of the tenants in workloads with several: what each shows instead of `api_key`."""
    tls: bool = False
    tls_ca: Path | None = None
    """Certificates to trust; None: the machine's."""


def connect(target: GrpcTarget) -> Connection:
    """Options and metadata, as the client library has them. Raises TargetError."""
    tls = Tls(ca=target.tls_ca) if target.tls_ca is not None else target.tls
    try:
        return make_connection(target.address, target.api_key, tls, KEEPALIVE_S, allow_plaintext_token=False)
    except ValueError as error:
        raise TargetError(str(error)) from None


def open_channel(connection: Connection) -> grpc.aio.Channel:
    """A channel with a connection of its own. Raises TargetError when certificates cannot be read."""
    options = (*connection.options[0], ("grpc.use_local_subchannel_pool", 1))
    if connection.tls is None:
        return grpc.aio.insecure_channel(connection.targets[0], options=options)
    try:
        return grpc.aio.secure_channel(connection.targets[0], connection.tls.credentials(), options=options)
    except OSError as error:
        raise TargetError(f"{error.filename}: {error.strerror}") from None


class GrpcClient:
    """A `StreamClient` over `num_connections` connections, taken in turn."""

    def __init__(self, target: GrpcTarget, clock: Clock, num_connections: int = 1) -> None:
        """Connects with the first call. Raises TargetError."""
        connection = connect(target)
        self._address = target.address
        self._clock = clock
        self._metadata = connection.metadata
        self._tenant_metadata = {
            tenant: connect(msgspec.structs.replace(target, api_key=key)).metadata
            for tenant, key in target.tenant_keys.items()
        }
        self._channels = [open_channel(connection) for _ in range(num_connections)]
        self._stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in self._channels]

    async def describe(self) -> TargetModel:
        """The served model. Raises TargetError."""
        try:
            answer = await self._stubs[0].GetModel(
                inference_pb2.GetModelRequest(), metadata=self._metadata, timeout=10.0, wait_for_ready=False
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return TargetModel(name="")
            raise TargetError(f"{self._address}: {describe_error(error)}") from None
        model = answer.model
        return TargetModel(
            name=model.id,
            fingerprint=model.fingerprint or None,
            dtype=model.dtype or None,
            quantization=model.quantization or None,
            vocab_size=model.vocab_size or None,
            max_model_len=model.context_length or None,
            is_deterministic=model.deterministic,
        )

    async def stream(self, call: Call, record: RequestRecord) -> tuple[int, ...]:
        """See `StreamClient`."""
        stub = self._stubs[record.number % len(self._stubs)]
        metadata = self._tenant_metadata.get(call.tenant, self._metadata)
        stream = stub.Generate(to_generate_request(call), metadata=metadata, timeout=call.timeout_s)
        token_ids: list[int] = []
        now_ns, finished = self._clock.now_ns, None
        try:
            async for message in stream:
                event = message.event
                match event.WhichOneof("event"):
                    case "delta":
                        record.take_delta(now_ns(), event.delta.num_tokens)
                        if call.wants_ids:
                            token_ids.extend(event.delta.token_ids)
                        if call.abandon_after is not None and record.output_tokens >= call.abandon_after:
                            stream.cancel()
                            record.outcome = Outcome.ABANDONED
                            return ()
                    case "finished":
                        finished = event.finished
                    case "accepted":
                        record.prompt_tokens = event.accepted.prompt_tokens
        except grpc.aio.AioRpcError as error:
            record.outcome, record.reason = _classify(error, was_accepted=record.prompt_tokens > 0)
        else:
            record.outcome, record.reason = _judge(record, finished)
        if finished is not None:
            _take_account(record, finished)
        if call.wants_ids:
            record.digest = digest_tokens(token_ids)
        return tuple(token_ids)

    async def close(self) -> None:
        """Lets go of connections."""
        for channel in self._channels:
            await channel.close()


def to_generate_request(call: Call) -> inference_pb2.GenerateRequest:
    """Greedy, by token ids, with a forced length."""
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=call.prompt),
        sampling=inference_pb2.Sampling(temperature=0.0),
        stopping=inference_pb2.Stopping(max_tokens=call.output_tokens, ignore_eos=True),
        output=inference_pb2.Output(token_ids=call.wants_ids),
    )


def describe_error(error: grpc.aio.AioRpcError) -> str:
    """Code, and reason or message."""
    return f"{error.code().name}: {_find_reason(error) or error.details() or 'no details'}"


def _classify(error: grpc.aio.AioRpcError, *, was_accepted: bool) -> tuple[Outcome, str]:
    code, reason = error.code(), _find_reason(error)
    text = f"{code.name}/{reason}" if reason else code.name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Outcome.TIMED_OUT, text
    if code in _REFUSALS and not was_accepted:
        return Outcome.REFUSED, text
    return Outcome.FAILED, text


def _judge(record: RequestRecord, finished: inference_pb2.Finished | None) -> tuple[Outcome, str]:
    if finished is None:
        return Outcome.FAILED, "BROKEN_STREAM"
    counted = finished.usage.output_tokens
    if counted != record.output_tokens:
        return Outcome.FAILED, f"TOKENS_LOST: usage says {counted}, {record.output_tokens} came"
    return (Outcome.OK if counted == record.wanted_tokens else Outcome.SHORT), ""


def _take_account(record: RequestRecord, finished: inference_pb2.Finished) -> None:
    timing = finished.timing
    record.finish_reason = inference_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_")
    record.prompt_tokens = finished.usage.prompt_tokens or record.prompt_tokens
    record.server = ServerAccount(
        queue_ms=timing.queue_ms,
        ttft_ms=timing.ttft_ms if timing.HasField("ttft_ms") else None,
        total_ms=timing.total_ms,
        itl_p50_ms=timing.itl_p50_ms if timing.HasField("itl_p50_ms") else None,
        itl_max_ms=timing.itl_max_ms if timing.HasField("itl_max_ms") else None,
        preemptions=finished.preemptions,
        cached_tokens=finished.usage.cached_tokens,
    )


def _find_reason(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return str(info.reason)
    return ""
