"""A gateway process, the stand-in that it is linked to, and client processes, for one figure after another."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

import msgspec

from chairlift.ipc import front
from chairlift.runtime.model_source import BUILT_IN, fingerprint_model, resolve_model
from chairlift.runtime.settings import IpcSettings
from deploy.bench.errors import BenchError
from deploy.bench.gateway_front.clients import Seen
from deploy.bench.gateway_front.stand_in import SchedulerStandIn
from deploy.bench.observe.processes import measure_cpu_s

_START_S = 600.0
_END_S = 300.0
_STREAMS_A_CHANNEL = 100


class ClientProcess:
    """Some streams, read by a process of their own."""

    def __init__(self, target: str, num_streams: int) -> None:
        channels = max(1, -(-num_streams // _STREAMS_A_CHANNEL))
        command = [sys.executable, "-m", "deploy.bench.gateway_front.clients", target, str(num_streams), str(channels)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def freeze(self) -> None:
        """It reads nothing any more; its connections stay."""
        self._process.send_signal(signal.SIGSTOP)

    def result(self) -> Seen:
        """What it saw, once its streams have ended. Raises BenchError."""
        try:
            packed, _ = self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            raise BenchError("the clients' streams did not end") from None
        if self._process.returncode:
            raise BenchError("the clients failed")
        return msgspec.json.decode(packed, type=Seen)

    def close(self) -> None:
        """Ends it, frozen or not."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class Rig:
    """A gateway with its stand-in."""

    def __init__(self, process: "subprocess.Popen[bytes]", scheduler: SchedulerStandIn, ports: "_Ports") -> None:
        self.pid = process.pid
        self.scheduler = scheduler
        self.target = f"127.0.0.1:{ports.port}"
        self.http_port = ports.http_port
        """Where the settings ask for one."""

    @contextmanager
    def clients(self, num_streams: int) -> Iterator[ClientProcess]:
        """Their streams are in when the block begins."""
        before = self.scheduler.num_streams
        process = ClientProcess(self.target, num_streams)
        try:
            self.scheduler.wait_for_streams(before + num_streams, _START_S)
            yield process
        finally:
            process.close()

    def cpu_s(self) -> float:
        """CPU seconds of the gateway so far. Raises BenchError where they are not told."""
        cpu_s = measure_cpu_s((self.pid,))
        if cpu_s is None:
            raise BenchError("this system does not tell the CPU time of processes")
        return cpu_s


@contextmanager
def open_rig(*settings: str) -> Iterator[Rig]:
    """A gateway with `settings` (``section.key=value``) of the built-in model, ready. Raises BenchError."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chairlift-bench-"))
        ipc = IpcSettings(run_dir=folder)
        scheduler = SchedulerStandIn(ipc, _model())
        stack.callback(scheduler.close)
        own = [f"ipc.run_dir={folder}", "gateway.listen=127.0.0.1:0", "gateway.ops_listen=127.0.0.1:0"]
        quiet = ["gateway.metrics_listen=", "telemetry.log_format=json", "gateway.max_concurrent_streams=20000"]
        # On a busy machine neither side is given up for a pause.
        quiet.append("ipc.heartbeat_timeout_s=60")
        process = _start([*own, *quiet, *settings])
        stack.callback(_end, process)
        yield Rig(process, scheduler, _ports(process))


class _Ports(msgspec.Struct, frozen=True):
    """What the gateway says when it has started."""

    port: int
    http_port: int | None = None


def _model() -> front.ModelInfo:
    return front.ModelInfo(
        model=BUILT_IN,
        fingerprint=fingerprint_model(resolve_model(BUILT_IN)),
        vocab_size=49_152,
        max_model_len=1 << 20,
        eos_token_ids=(2,),
        kv_capacity_tokens=1 << 30,
        dtype="bfloat16",
        quantization="",
        device="cpu",
        deterministic=True,
        num_parameters=1,
    )


def _start(settings: Sequence[str]) -> "subprocess.Popen[bytes]":
    arguments = [part for setting in settings for part in ("--set", setting)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CHAIRLIFT_")}
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


def _ports(process: "subprocess.Popen[bytes]") -> _Ports:
    """Its ports, once they are listened on; what the gateway says later is read and dropped."""
    assert process.stdout is not None
    line = b""
    for line in process.stdout:
        if b"gateway_started" in line:
            threading.Thread(target=_drop, args=(process.stdout,), daemon=True).start()
            return msgspec.json.decode(line, type=_Ports)
    raise BenchError(f"the gateway did not start: {line.decode(errors='replace').strip()}")


def _drop(output: IO[bytes]) -> None:
    with output:
        for _ in output:
            pass


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
