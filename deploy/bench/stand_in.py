"""A server that computes nothing: speaks Generate with delays from a script, to measure and test the generator itself.

`python -m deploy.bench.stand_in` prints its address and serves until its standard input ends.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import msgspec

from chairlift.v1 import inference_pb2
from deploy.bench.load.clock import MonotonicClock

_MAX_STREAMS = 10_000
_SERVICE = "chairlift.v1.InferenceService"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Delays of every request. Kept against the request's arrival, so that lateness does not add up."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    tokens_per_delta: int = 1
    refuse_from: int | None = None
    """Requests from this number on are refused as a full queue refuses them."""

    @property
    def is_timed(self) -> bool:
        """Whether there is anything to wait for."""
        return self.ttft_ms > 0 or self.itl_ms > 0


class StandIn:
    """The service. Tokens are 1000, 1001 and so on."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._clock = MonotonicClock()
        self._num_requests = 0

    async def get_model(
        self, request: inference_pb2.GetModelRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> inference_pb2.GetModelResponse:
        """A model that is none."""
        model = inference_pb2.Model(id="stand-in", context_length=1 << 20, vocab_size=49_152, fingerprint="0" * 16)
        return inference_pb2.GetModelResponse(model=model)

    async def generate(
        self, request: inference_pb2.GenerateRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams `max_tokens` tokens at the script's times."""
        script, start_ns = self._script, self._clock.now_ns()
        number, self._num_requests = self._num_requests, self._num_requests + 1
        if script.refuse_from is not None and number >= script.refuse_from:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
        prompt_tokens, wanted = len(request.token_ids.ids), request.stopping.max_tokens
        yield _event(accepted=inference_pb2.Accepted(request_id=str(number), prompt_tokens=prompt_tokens))
        for offset in range(0, wanted, script.tokens_per_delta):
            if script.is_timed:
                await self._clock.wait_until(start_ns + round((script.ttft_ms + script.itl_ms * offset) * 1e6))
            num_tokens = min(script.tokens_per_delta, wanted - offset)
            ids = range(1000 + offset, 1000 + offset + num_tokens) if request.output.token_ids else ()
            yield _event(delta=inference_pb2.Delta(offset=offset, num_tokens=num_tokens, token_ids=ids, text="x"))
        usage = inference_pb2.Usage(prompt_tokens=prompt_tokens, output_tokens=wanted)
        total_ms = (self._clock.now_ns() - start_ns) / 1e6
        timing = inference_pb2.Timing(queue_ms=0.0, ttft_ms=script.ttft_ms, total_ms=total_ms)
        yield _event(
            finished=inference_pb2.Finished(reason=inference_pb2.FINISH_REASON_LENGTH, usage=usage, timing=timing)
        )


async def start_stand_in(script: Script) -> tuple[grpc.aio.Server, str]:
    """Starts one on a free port of loopback in this event loop; returns it and its address."""
    server = grpc.aio.server(options=(("grpc.max_concurrent_streams", _MAX_STREAMS),))
    server.add_generic_rpc_handlers((_handlers(StandIn(script)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def _handlers(stand_in: StandIn) -> grpc.GenericRpcHandler:
    """The two methods that the generator calls; every other one is UNIMPLEMENTED."""
    methods: dict[str, Any] = {
        "Generate": grpc.unary_stream_rpc_method_handler(
            stand_in.generate,
            request_deserializer=inference_pb2.GenerateRequest.FromString,
            response_serializer=inference_pb2.GenerateResponse.SerializeToString,
        ),
        "GetModel": grpc.unary_unary_rpc_method_handler(
            stand_in.get_model,
            request_deserializer=inference_pb2.GetModelRequest.FromString,
            response_serializer=inference_pb2.GetModelResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


def _event(
    *,
    accepted: inference_pb2.Accepted | None = None,
    delta: inference_pb2.Delta | None = None,
    finished: inference_pb2.Finished | None = None,
) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        event=inference_pb2.GenerationEvent(accepted=accepted, delta=delta, finished=finished)
    )


async def _serve(script: Script) -> None:
    server, address = await start_stand_in(script)
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace=0)


def main() -> None:
    """Serves until standard input ends: with its parent, that is."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.stand_in", description=__doc__)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--tokens-per-delta", type=int, default=1)
    arguments = parser.parse_args()
    script = Script(
        ttft_ms=arguments.ttft_ms, itl_ms=arguments.itl_ms, tokens_per_delta=max(1, arguments.tokens_per_delta)
    )
    asyncio.run(_serve(script))


if __name__ == "__main__":
    main()
