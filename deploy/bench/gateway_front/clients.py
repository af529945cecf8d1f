"""Clients in a process of their own: many streams that are read as they come, without looking into the messages.

`python -m deploy.bench.gateway_front.clients TARGET STREAMS CHANNELS` prints what they saw, as JSON, at the end.
"""

import asyncio
import gc
import sys
import time
from array import array
from typing import Any

import grpc.aio
import msgspec

from chairlift.v1 import inference_pb2

_METHOD = "/chairlift.v1.InferenceService/Generate"
_OPENING_AT_ONCE = 64


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the streams of one process saw."""

    messages: int
    """Without the first and the last of each stream, which carry no tokens."""
    bytes: int
    gaps_ms: list[float]
    """Between two messages of a stream."""
    failed: int


def open_stream(channel: grpc.aio.Channel, request: bytes) -> Any:
    """A call of Generate whose messages stay bytes."""
    method: Any = channel.unary_stream(_METHOD)
    return method(request)


class _Reader:
    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.gaps = array("f")
        self.failed = 0

    async def read(self, channel: grpc.aio.Channel, opening: asyncio.Semaphore, request: bytes) -> None:
        """One stream to its end."""
        call = open_stream(channel, request)
        try:
            async with opening:
                await call.read()
            last = 0.0
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:
                    break
                now = time.monotonic()
                self.messages += 1
                self.bytes += len(message)
                if last:
                    self.gaps.append((now - last) * 1e3)
                last = now
            # The last one was the end.
            self.messages -= 1
        except grpc.aio.AioRpcError:
            self.failed += 1


async def read_streams(target: str, num_streams: int, num_channels: int) -> Seen:
    """Opens the streams over so many connections and reads all to their ends."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(num_channels)]
    request = inference_pb2.GenerateRequest()
    request.token_ids.ids.extend(range(1000, 1016))
    packed = request.SerializeToString()
    reader, opening = _Reader(), asyncio.Semaphore(_OPENING_AT_ONCE)
    gc.freeze()
    await asyncio.gather(
        *(reader.read(channels[number % num_channels], opening, packed) for number in range(num_streams))
    )
    for channel in channels:
        await channel.close()
    return Seen(messages=reader.messages, bytes=reader.bytes, gaps_ms=list(reader.gaps), failed=reader.failed)


def main() -> None:
    """The command."""
    target, num_streams, num_channels = sys.argv[1:]
    seen = asyncio.run(read_streams(target, int(num_streams), int(num_channels)))
    sys.stdout.buffer.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
