"""Requests that nobody should send, to a gateway process of its own, while neighbours stream from it.

Structured ones come from hypothesis, over every field of every message; mutated ones go to the ports as bytes:
messages, HTTP/2 frames, HTTP requests. Each gets its answer or a typed error; no neighbour notices; memory stays.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chairlift.v1 import inference_pb2 as pb
from deploy.bench.gateway_front.rig import Rig, open_rig
from deploy.bench.gateway_front.stand_in import Steps
from deploy.bench.observe.processes import measure_memory

SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"]
METHODS = {method.name: method for method in SERVICE.methods}
# Most of what can go wrong is in the first.
WEIGHTED = ["Generate"] * 8 + ["Tokenize", "Detokenize", "Resume", "Cancel", "Explain", "GetModel", "ListModels"]
BATCH = 250
CONNECTIONS = 4
NEIGHBOURS = 4
WARM, ROOM_BYTES = 10_000, 10 << 20
WAIT_S = 60.0

# ---- what is sent ----

TEXTS = (
    "",
    "\0",
    "\ufffd",
    "é" * 300,
    "<|im_end|>",
    "{{ 7 }}",
    "a" * 5000,
    "🏔" * 70,
    "default",
    "user",
    "smollm2-135m",
)
INTEGERS = (0, 1, 2, 3, 16, 255, 256, 49_151, 49_152, (1 << 31) - 1)
FLOATS = (0.0, -0.0, 0.5, 1.0, 2.0, 2.5, -1.0, 1e-45, 3e38, float("nan"), float("inf"), -float("inf"))
MAX_DEPTH = 5
CALLS_AN_EXAMPLE = 25
BYTES_A_CALL = 80


class Choices:
    """Turns hypothesis' bytes into choices: one example is many calls, and chance has nowhere else to hide."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next bytes; zeros behind the end."""
        self._at += count
        return self._data[self._at - count : self._at].ljust(count, b"\0")

    def below(self, bound: int) -> int:
        return int.from_bytes(self.take(1)) % bound

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]


def value_of(field: FieldDescriptor, choices: Choices, depth: int) -> Any:
    """One value of that field."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return choices.take(choices.below(20))
        case FieldDescriptor.CPPTYPE_STRING:
            own = choices.take(choices.below(12)).decode("utf-8", "replace")
            return own if choices.below(2) else choices.one_of(TEXTS)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return choices.one_of(FLOATS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(choices.below(2))
        case FieldDescriptor.CPPTYPE_UINT64:
            return choices.one_of((*INTEGERS, (1 << 64) - 1))
        case FieldDescriptor.CPPTYPE_UINT32:
            return choices.one_of((*INTEGERS, (1 << 32) - 1, choices.below(256)))
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return choices.one_of((1, -1)) * choices.one_of(INTEGERS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return choices.below(10)
        case _:
            assert field.message_type is not None
            return message_of(field.message_type, choices, depth + 1)


def message_of(kind: Descriptor, choices: Choices, depth: int = 0) -> Message:
    """A message of that kind with some of its fields set."""
    message = GetMessageClass(kind)()
    if depth < MAX_DEPTH and kind.fields:
        for _ in range(choices.below(4) + (depth == 0)):
            set_field(message, choices.one_of(kind.fields), choices, depth)
    return message


def set_field(message: Message, field: FieldDescriptor, choices: Choices, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        fields = field.message_type.fields_by_name
        for _ in range(choices.below(4)):
            target[value_of(fields["key"], choices, depth)] = value_of(fields["value"], choices, depth)
    elif field.is_repeated:
        target.extend([value_of(field, choices, depth) for _ in range(choices.below(4))])
    elif field.message_type is not None:
        target.CopyFrom(value_of(field, choices, depth))
    else:
        setattr(message, field.name, value_of(field, choices, depth))


def calls_of(data: bytes) -> list[tuple[str, bytes]]:
    """What an example stands for."""
    calls = []
    for start in range(0, len(data), BYTES_A_CALL):
        choices = Choices(data[start : start + BYTES_A_CALL])
        name = choices.one_of(WEIGHTED)
        calls.append((name, message_of(METHODS[name].input_type, choices).SerializeToString()))
    return calls


def mutated(chance: random.Random, packed: bytes) -> bytes:
    """A few bytes of it changed, inserted, removed, doubled, or the end cut off."""
    data = bytearray(packed)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del data[at : at + chance.randrange(1, 9)]
            case 4:
                data[at:at] = data[at : at + chance.randrange(1, 30)]
            case _:
                del data[max(at, len(data) // 2) :]
    return bytes(data)


def good_calls() -> list[tuple[str, bytes]]:
    """What is mutated."""
    generate = pb.GenerateRequest(
        request_id="fuzz", model="smollm2-135m", text="some text", cache_salt="salt", output=pb.Output(logprobs=2)
    )
    generate.sampling.CopyFrom(pb.Sampling(temperature=0.5, top_p=0.9, top_k=4, seed=7, n=2, logit_bias={5: 1.0}))
    generate.stopping.CopyFrom(pb.Stopping(max_tokens=5, stop=["END", "é"], stop_token_ids=[1, 2]))
    generate.scheduling.queue_timeout.seconds = 1
    generate.delivery.detach_grace.seconds = 1
    chat = pb.GenerateRequest()
    chat.messages.messages.add(role="user", content=[pb.ContentPart(text="hello")], name="me")
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3, 49_151]))
    resume = pb.ResumeRequest(request_id="fuzz", offsets=[pb.ChoiceOffset(index=0, offset=1)])
    tokenize = pb.TokenizeRequest(text="hello world")
    requests: list[tuple[str, Message]] = [
        ("Generate", generate),
        ("Generate", chat),
        ("Generate", ids),
        ("Resume", resume),
        ("Tokenize", tokenize),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1000, 1001])),
        ("Cancel", pb.CancelRequest(request_id="fuzz")),
        ("Explain", pb.ExplainRequest(request_id="fuzz")),
        ("GetModel", pb.GetModelRequest(model="smollm2-135m")),
    ]
    return [(name, request.SerializeToString()) for name, request in requests]


HTTP2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    b"\0\0\0\x04\0\0\0\0\0"  # SETTINGS
    b"\0\0\x08\x06\0\0\0\0\0chairlif"  # PING
    b"\0\0\x04\x08\0\0\0\0\0\0\0\xff\xff"  # WINDOW_UPDATE
    b"\0\0\x05\x01\x04\0\0\0\x01\x83\x86\x44\x01/"  # HEADERS: POST http, a path
    b"\0\0\x05\0\x01\0\0\0\x01\0\0\0\0\0"  # DATA: an empty message
)
HTTP1_BODY = b'{"prompt":"go","max_tokens":3,"stop":["a"],"logit_bias":{"5":1},"stream_options":null}'
HTTP1 = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(HTTP1_BODY), HTTP1_BODY)
)

# ---- how it is sent ----


class Wrong(AssertionError):
    """An answer that no input may get."""


class Sender:
    """Sends many calls at once over a few connections, on a loop of its own."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.loop = asyncio.new_event_loop()
        self.codes: dict[str, int] = {}
        self.neighbours: list[asyncio.Task[int]] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._steps: threading.Thread | None = None
        self.call(self._open())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    async def _open(self) -> None:
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        )
        self.channels = [grpc.aio.insecure_channel(self.rig.target, options=options) for _ in range(CONNECTIONS)]
        self.methods: list[dict[str, Callable[[bytes], Any]]] = []
        for channel in self.channels:
            kinds: dict[bool, Any] = {True: channel.unary_stream, False: channel.unary_unary}
            self.methods.append(
                {
                    name: kinds[method.server_streaming](f"/{SERVICE.full_name}/{name}")
                    for name, method in METHODS.items()
                }
            )

    # ---- neighbours ----

    def start_neighbours(self) -> None:
        self.call(self._start_neighbours())
        self.rig.scheduler.wait_for_streams(NEIGHBOURS, WAIT_S)
        self.rig.scheduler.ends_new = True
        steps = Steps(interval_s=0.05, count=1 << 30)
        self._steps = threading.Thread(target=self.rig.scheduler.run, args=(steps,), daemon=True)
        self._steps.start()

    async def _start_neighbours(self) -> None:
        self.neighbours = [asyncio.create_task(self._stream(number)) for number in range(NEIGHBOURS)]

    async def _stream(self, number: int) -> int:
        """Reads one to its end; nothing twice, nothing missing."""
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1000]), output=pb.Output(token_ids=True))
        count = 0
        async for packed in self.methods[number % CONNECTIONS]["Generate"](request.SerializeToString()):
            event = pb.GenerateResponse.FromString(packed).event
            match event.WhichOneof("event"):
                case "delta":
                    assert event.delta.offset == count
                    assert list(event.delta.token_ids) == [
                        1000 + (count + at) % 4000 for at in range(event.delta.num_tokens)
                    ]
                    count += event.delta.num_tokens
                case "finished":
                    assert event.finished.reason == pb.FINISH_REASON_LENGTH
                    assert event.finished.usage.output_tokens == count
        return count

    def end_neighbours(self) -> list[int]:
        """How many tokens each got."""
        assert not any(task.done() for task in self.neighbours)
        self.rig.scheduler.finish_all()
        return list(self.call(self._gathered()))

    async def _gathered(self) -> list[int]:
        return await asyncio.gather(*self.neighbours)

    # ---- calls ----

    def send(self, calls: Sequence[tuple[str, bytes]]) -> None:
        """All of them at once. Raises Wrong."""
        self.call(self._send(calls))

    async def _send(self, calls: Sequence[tuple[str, bytes]]) -> None:
        results = await asyncio.gather(
            *(self._one(number, name, packed) for number, (name, packed) in enumerate(calls))
        )
        for wrong in filter(None, results):
            raise Wrong(wrong)

    async def _one(self, number: int, name: str, packed: bytes) -> str:
        call = self.methods[number % CONNECTIONS][name](packed)
        try:
            if METHODS[name].server_streaming:
                async for _ in call:
                    pass
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return self._judge(name, packed, error)
        self.codes["OK"] = self.codes.get("OK", 0) + 1
        return ""

    def _judge(self, name: str, packed: bytes, error: grpc.aio.AioRpcError) -> str:
        code = error.code()
        self.codes[code.name] = self.codes.get(code.name, 0) + 1
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) or not isinstance(details, bytes):
            return f"{name} {packed!r}: {code.name}: {error.details()}"
        infos = [each for each in status_pb2.Status.FromString(details).details if each.Is(INFO)]
        return "" if len(infos) == 1 else f"{name} {packed!r}: {len(infos)} ErrorInfo"

    # ---- bytes at the ports ----

    def send_raw(self, port: int, inputs: Sequence[bytes]) -> list[bytes]:
        """Each over a connection of its own; what came back."""
        return list(self.call(self._send_raw(port, inputs)))

    async def _send_raw(self, port: int, inputs: Sequence[bytes]) -> list[bytes]:
        return await asyncio.gather(*(_exchange(port, packed) for packed in inputs))

    def close(self) -> None:
        self.call(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close(self) -> None:
        for task in self.neighbours:
            task.cancel()
        for channel in self.channels:
            await channel.close()


INFO = error_details_pb2.ErrorInfo.DESCRIPTOR


async def _exchange(port: int, packed: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(packed)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.fixture
def sender() -> Iterator[Sender]:
    """A gateway, its neighbours streaming."""
    with open_rig("gateway.http_listen=127.0.0.1:0", "gateway.http_read_timeout_s=0.5") as rig:
        one = Sender(rig)
        one.start_neighbours()
        try:
            yield one
        finally:
            one.close()


class Memory:
    """Watches the gateway's process."""

    def __init__(self, sender: Sender) -> None:
        self._pid = sender.rig.pid
        self._sent = 0
        self._after_warm: int | None = None

    def sent(self, count: int) -> None:
        self._sent += count
        if self._after_warm is None and self._sent >= WARM:
            self._after_warm = self.now()

    def now(self) -> int:
        memory = measure_memory((self._pid,))
        if memory is None:
            pytest.skip("this system does not tell the memory of a process")
        return memory.bytes

    def check(self) -> None:
        assert self._after_warm is not None
        assert self.now() - self._after_warm <= ROOM_BYTES


def test_structured_and_mutated_inputs(sender: Sender, scale: Any) -> None:
    """In one process one after another: what the first have left would be met by the last."""
    memory = Memory(sender)
    _send_structured(sender, scale, memory)
    assert sender.codes.keys() >= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    _send_mutated(sender, scale, memory)
    memory.check()
    tokens = sender.end_neighbours()
    assert min(tokens) > 0
    # They were given the same steps.
    assert len(set(tokens)) == 1


def _send_structured(sender: Sender, scale: Any, memory: Memory) -> None:
    waiting: list[tuple[str, bytes]] = []
    count = 0

    def flush() -> None:
        sender.send(waiting)
        memory.sent(len(waiting))
        waiting.clear()

    size = CALLS_AN_EXAMPLE * BYTES_A_CALL

    @settings(
        max_examples=scale.structured // CALLS_AN_EXAMPLE,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=scale.seed == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=size, max_size=size))
    def collect(data: bytes) -> None:
        nonlocal count
        calls = calls_of(data)
        count += len(calls)
        waiting.extend(calls)
        if len(waiting) >= BATCH:
            flush()

    collect()
    flush()
    assert count >= scale.structured


def _send_mutated(sender: Sender, scale: Any, memory: Memory) -> None:
    chance, good = random.Random(scale.seed), good_calls()
    num_raw = scale.mutated // 20
    for _ in range((scale.mutated - 2 * num_raw) // BATCH):
        calls = [chance.choice(good) for _ in range(BATCH)]
        sender.send([(name, mutated(chance, packed)) for name, packed in calls])
        memory.sent(BATCH)
    http_port, port = sender.rig.http_port, int(sender.rig.target.rpartition(":")[2])
    assert http_port is not None
    for seed, at in ((HTTP2, port), (HTTP1, http_port)):
        for _ in range(num_raw // BATCH):
            answers = sender.send_raw(at, [mutated(chance, seed) for _ in range(BATCH)])
            assert not any(b"HTTP/1.1 500" in answer for answer in answers)
            memory.sent(BATCH)
