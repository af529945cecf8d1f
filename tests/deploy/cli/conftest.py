"""A server for the command line to talk to, and ways to run commands."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc


class EchoServer(pb_grpc.InferenceServiceServicer):
    """Says the prompt's words again, one a token. A prompt of ``refuse`` is refused; ``endless`` never ends."""

    def __init__(self) -> None:
        self.target = ""
        self.requests: list[Any] = []
        self.gone = threading.Event()

    def Generate(self, request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
        self.requests.append(request)
        text = request.text or " ".join(part.text for part in request.messages.messages[-1].content)
        if text == "refuse":
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED")
        accepted = pb.Accepted(request_id=request.request_id, model="echo", prompt_tokens=1)
        yield pb.GenerateResponse(event=pb.GenerationEvent(accepted=accepted))
        if text == "endless":
            context.add_callback(self.gone.set)
        for index in range(request.sampling.n or 1):
            words = text.split()
            offset = 0
            while offset < len(words) or (text == "endless" and not self.gone.wait(0.005)):
                word = words[offset % len(words)]
                delta = pb.Delta(index=index, offset=offset, num_tokens=1, text=f"{word} ", token_ids=[offset])
                yield pb.GenerateResponse(event=pb.GenerationEvent(delta=delta))
                offset += 1
            usage = pb.Usage(prompt_tokens=1, output_tokens=offset)
            finished = pb.Finished(
                index=index, reason=pb.FINISH_REASON_LENGTH, usage=usage, timing=pb.Timing(total_ms=5)
            )
            yield pb.GenerateResponse(event=pb.GenerationEvent(finished=finished))

    def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=pb.Model(id="echo"))

    def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> None:
        status = status_pb2.Status(code=code.value[0], message="too long")
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="chairlift"))
        context.abort_with_status(rpc_status.to_status(status))

    def _unused(self, request: Any, context: Any) -> Any:
        self._refuse(context, grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED")

    Resume = Cancel = Explain = Tokenize = Detokenize = ListModels = _unused


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    servicer = EchoServer()
    server = grpc.server(ThreadPoolExecutor(8))
    pb_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    servicer.gone.set()
    server.stop(None).wait()


@pytest.fixture
def start_command() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts `chairlift …` as a process of its own, with pipes for all three streams."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environ: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
