"""The whole stack as a user meets it: `chairlift serve`, real model, real sockets, the client library and raw stubs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chairlift.client import AsyncClient, Client, FinishReason, InvalidArgumentError
from chairlift.v1 import inference_pb2, inference_pb2_grpc


def _wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        time.sleep(0.02)


def _is_empty(stack: Any) -> bool:
    load = stack.load()
    return (load.num_running, load.num_waiting, load.kv_blocks.used) == (0, 0, 0)


def test_text_is_streamed_as_it_is_made(stack: Any) -> None:
    """The first delta is here while the last token is still to be made."""
    with Client(stack.listen) as client:
        stream = client.stream("The best thing about trains is", max_tokens=200, temperature=0, ignore_eos=True)
        first = next(iter(stream))
        load = stack.load()
        assert load.num_running == 1
        completion = stream.wait()
    assert first.offset == 0
    assert completion.text.startswith(first.text)
    assert len(completion.text) > 100
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage.output_tokens == 200
    _wait_until(lambda: _is_empty(stack))


def test_serve_prints_the_limits_it_chose(stack: Any) -> None:
    assert "32 sequences and 512 tokens a step" in stack.log()
    assert f"chairlift generate --target {stack.listen}" in stack.log()


def test_a_chat_answers_and_ends_by_itself(stack: Any) -> None:
    with Client(stack.listen) as client:
        answer = client.generate(
            [{"role": "user", "content": "What is the capital of France?"}], max_tokens=64, temperature=0
        )
    assert "Paris" in answer.text
    assert answer.finish_reason is FinishReason.EOS


def test_text_ids_and_another_batch_give_the_same(stack: Any) -> None:
    options: Any = {"max_tokens": 24, "temperature": 0.8, "seed": 11, "token_ids": True, "ignore_eos": True}
    with Client(stack.listen) as client:
        ids = list(client.tokenize("Once upon a time").token_ids)
        alone = client.generate("Once upon a time", **options)
        by_ids = client.generate(ids, **options)
    assert by_ids.choices[0].token_ids == alone.choices[0].token_ids
    assert alone.choices[0].seed == 11


async def test_64_streams_of_mixed_lengths_end_and_leave_nothing(stack: Any) -> None:
    lengths = [4 + (i * 13) % 40 for i in range(64)]
    async with AsyncClient(stack.listen) as client:

        async def one(i: int) -> tuple[int, int]:
            completion = await client.generate(
                [1000 + i] * (1 + (i * 37) % 120), max_tokens=lengths[i], temperature=0, ignore_eos=True
            )
            return completion.usage.prompt_tokens, completion.usage.output_tokens

        found = await asyncio.gather(*(one(i) for i in range(64)))
    assert found == [(1 + (i * 37) % 120, lengths[i]) for i in range(64)]
    _wait_until(lambda: _is_empty(stack))


async def test_a_cancelled_stream_frees_its_blocks(stack: Any) -> None:
    async with AsyncClient(stack.listen) as client:
        stream = client.stream("Count from one on:", max_tokens=2000, ignore_eos=True)
        await anext(aiter(stream))
        assert stack.load().kv_blocks.used > 0
        await stream.aclose()
    _wait_until(lambda: _is_empty(stack), timeout_s=20)


def test_a_client_that_just_goes_away_frees_its_blocks(stack: Any) -> None:
    code = (
        "import sys\n"
        "from chairlift.v1 import inference_pb2 as pb, inference_pb2_grpc as rpc\n"
        "import grpc\n"
        "stub = rpc.InferenceServiceStub(grpc.insecure_channel(sys.argv[1]))\n"
        "request = pb.GenerateRequest(text='x', stopping=pb.Stopping(max_tokens=2000, ignore_eos=True))\n"
        "for _ in stub.Generate(request):\n"
        "    print('streaming', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, stack.listen], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "streaming\n"
    process.kill()
    process.stdout.close()
    process.wait(30)
    _wait_until(lambda: _is_empty(stack), timeout_s=20)


def test_a_deadline_ends_the_work(stack: Any) -> None:
    request = inference_pb2.GenerateRequest(text="x", stopping=inference_pb2.Stopping(max_tokens=4000, ignore_eos=True))
    with grpc.insecure_channel(stack.listen) as channel:
        stream = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=1.0)
        with pytest.raises(grpc.RpcError) as raised:
            for _ in stream:
                pass
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    _wait_until(lambda: _is_empty(stack), timeout_s=20)


def test_a_stop_string_cuts_the_text(stack: Any) -> None:
    with Client(stack.listen) as client:
        whole = client.generate("Once upon a time", max_tokens=32, temperature=0, ignore_eos=True)
        word = whole.text.split()[3]
        cut = client.generate("Once upon a time", max_tokens=32, temperature=0, stop=word, ignore_eos=True)
    assert cut.finish_reason is FinishReason.STOP_STRING
    assert cut.choices[0].stop == word
    assert cut.text == whole.text[: whole.text.index(word)]


def test_what_can_never_fit_is_refused_at_the_door(stack: Any) -> None:
    with Client(stack.listen) as client:
        limit = client.get_model().limits.max_prompt_tokens
        with pytest.raises(InvalidArgumentError):
            client.generate([7] * (limit + 1), max_tokens=1)


def test_health_and_reflection(stack: Any) -> None:
    with grpc.insecure_channel(stack.listen) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "chairlift.v1.InferenceService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = next(
            reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        )
    names = {service.name for service in listing.list_services_response.service}
    assert "chairlift.v1.InferenceService" in names


def test_the_command_line_generates(stack: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.cli", "generate", "--target", stack.listen]
    options = ["--max-tokens", "8", "--temperature", "0"]
    one = subprocess.run([*command, *options, "The sky is"], capture_output=True, text=True, timeout=120, check=True)
    assert one.stdout.strip()
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "Number {i} is"}}\n' for i in range(5)))
    many = subprocess.run(
        [*command, *options, "--file", str(file)], capture_output=True, text=True, timeout=120, check=True
    )
    assert len(many.stdout.splitlines()) == 5


def test_a_killed_worker_loses_no_stream_and_sigterm_lets_streams_finish(serve: Callable[..., Any]) -> None:
    """The rest of the stream is that of an undisturbed run: same ids, nothing twice, nothing missing."""
    stack = serve().wait_ready()
    options: Any = {"max_tokens": 60, "temperature": 0.7, "seed": 5, "token_ids": True, "ignore_eos": True}
    with Client(stack.listen) as client:
        undisturbed = client.generate("A chairlift is", **options)
        stream = client.stream("A chairlift is", **options)
        next(iter(stream))
        os.kill(stack.children()["gpu_worker"], signal.SIGKILL)
        disturbed = stream.wait()
        assert disturbed.choices[0].token_ids == undisturbed.choices[0].token_ids
        last = client.stream("Slowly,", max_tokens=40, temperature=0, ignore_eos=True)
        next(iter(last))
        stack.process.send_signal(signal.SIGTERM)
        assert last.wait().usage.output_tokens == 40
    assert stack.process.wait(60) == 0


def test_a_model_that_cannot_be_loaded_is_one_clear_line(serve: Callable[..., Any], tmp_path: Path) -> None:
    """Exit code 3, no port opened, no restart."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    stack = serve(f"model.source={tmp_path / 'broken'}")
    assert stack.process.wait(60) == 3
    assert "unknown architecture" in stack.log()
