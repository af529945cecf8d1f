"""The compose stack, run for real: builds, streams, kills a worker and a gateway, streams on, stops amid streams.

Needs a Docker engine on this machine, and rights to signal what runs in it:

    python deploy/compose/proof.py [--no-build]

Streams come from outside the containers, through both published ports, by the client library.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from deploy.container_proof import ProofFailed, Stream, engine_environment, finish, progress, wait_until

FOLDER = Path(__file__).resolve().parent
PROJECT = "chairlift"
"""As .env names it."""
MAX_SLIM_BYTES = 250_000_000
_SERVICES = ("gateway-a", "gateway-b", "scheduler", "worker")
_PROMPTS = ("The best thing about trains is", "Once upon a time", "In the mountains, winter")
_MAX_TOKENS = 320
_START_TIMEOUT_S = 300.0


class Compose:
    """The stack, by whichever compose is installed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._containers: dict[str, str] = {}
        plugin = shutil.which("docker") and self._try("docker", "compose", "version")
        self._command = ("docker", "compose") if plugin else ("docker-compose",)

    def _try(self, *command: str) -> bool:
        return subprocess.run(command, env=self._environ, capture_output=True, check=False).returncode == 0

    def __call__(self, *arguments: str) -> None:
        """Runs compose; what it says goes to the terminal. Raises ProofFailed."""
        done = subprocess.run([*self._command, *arguments], cwd=FOLDER, env=self._environ, check=False)
        if done.returncode:
            raise ProofFailed(f"{' '.join((*self._command, *arguments))} exited with {done.returncode}")

    def container(self, service: str) -> str:
        """Id of a service's container. Restarts leave it as it is."""
        if service not in self._containers:
            labels = [f"label=com.docker.compose.{name}" for name in (f"project={PROJECT}", f"service={service}")]
            filters = [part for label in labels for part in ("--filter", label)]
            found = self._output("docker", "ps", "--quiet", "--no-trunc", *filters)
            if not found:
                raise ProofFailed(f"{service} has no running container")
            self._containers[service] = found
        return self._containers[service]

    def inspect(self, container: str, template: str) -> str:
        """A field of a container or an image."""
        return self._output("docker", "inspect", "--format", template, container)

    def processes(self, container: str) -> list[tuple[int, str]]:
        """(process id on this machine, command line) of what runs in a container."""
        rows = self._output("docker", "top", container, "-eo", "pid,args").splitlines()[1:]
        return [(int(pid), line) for pid, _, line in (row.strip().partition(" ") for row in rows)]

    def _output(self, *command: str) -> str:
        done = subprocess.run(command, cwd=FOLDER, env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProofFailed(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()


def _start_streams(targets: Sequence[str]) -> list[Stream]:
    """Each prompt through each gateway first."""
    orders = [tuple(targets), tuple(reversed(targets))]
    return [Stream(order, prompt, _MAX_TOKENS) for prompt in _PROMPTS for order in orders]


def _finish(streams: Sequence[Stream], expected: Mapping[str, str]) -> None:
    finish(streams)
    if any(stream.text != expected.get(stream.prompt, stream.text) for stream in streams):
        raise ProofFailed("a stream has other text than undisturbed")


def _check_images(compose: Compose) -> None:
    for service in _SERVICES:
        image = compose.inspect(compose.container(service), "{{.Config.Image}}")
        size = int(compose.inspect(image, "{{.Size}}"))
        user = compose.inspect(image, "{{.Config.User}}")
        print(f"image {image}: {size / 1e6:.0f} MB, user {user}")
        if service != "worker" and size > MAX_SLIM_BYTES:
            raise ProofFailed(f"{image} is larger than {MAX_SLIM_BYTES / 1e6:.0f} MB")


class Victim(msgspec.Struct, frozen=True):
    """A process in a container, by its id on this machine."""

    service: str
    container: str
    pid: int

    def kill(self, streams: Sequence[Stream]) -> None:
        """SIGKILL, from outside the container, in the middle of every stream."""
        os.kill(self.pid, signal.SIGKILL)
        if any(stream.is_complete for stream in streams):
            raise ProofFailed("a stream had ended before the kill: nothing is shown")
        print(f"killed {self.service}: process {self.pid} of this machine")


def _find(compose: Compose, service: str, module: str) -> Victim:
    container = compose.container(service)
    pids = _pids(compose, container, module)
    if not pids:
        raise ProofFailed(f"no process in {service} runs {module}")
    return Victim(service, container, pids[0])


def _pids(compose: Compose, container: str, module: str) -> list[int]:
    return [pid for pid, line in compose.processes(container) if f"-m {module}" in line]


def _is_replaced(compose: Compose, victim: Victim, module: str) -> bool:
    pids = _pids(compose, victim.container, module)
    return bool(pids) and victim.pid not in pids


def _prove(compose: Compose, targets: Sequence[str]) -> dict[str, str]:
    """Everything but the end. Returns the text of each prompt."""
    took = wait_until(
        "every service is healthy",
        lambda: all(
            compose.inspect(compose.container(one), "{{.State.Health.Status}}") == "healthy" for one in _SERVICES
        ),
        _START_TIMEOUT_S,
    )
    print(f"healthy after {took:.0f} s")
    _check_images(compose)
    streams = _start_streams(targets)
    _finish(streams, {})
    expected = {stream.prompt: stream.text for stream in streams}
    _finish(streams, expected)
    print(f"undisturbed: {len(streams)} streams through {' and '.join(targets)}, both gateways say the same")

    worker, gateway = _find(compose, "worker", "gpu_worker"), _find(compose, "gateway-a", "gateway")
    streams = _start_streams(targets)
    wait_until("streams have begun", progress(streams, 8), 60)
    worker.kill(streams)
    took = wait_until("another worker is there", lambda: _is_replaced(compose, worker, "gpu_worker"), 60)
    took += wait_until("streams go on after the worker's death", progress(streams, 8), 200)
    print(f"streams went on {took:.1f} s after the worker died")
    gateway.kill(streams)
    took = wait_until("streams go on after a gateway's death", progress(streams, 8), 120)
    print(f"streams went on {took:.1f} s after the gateway died")
    if compose.inspect(worker.container, "{{.RestartCount}}") != "0":
        raise ProofFailed("the worker's container was restarted")
    _finish(streams, expected)
    print("every stream ended with the text of the undisturbed run; the worker's container was not restarted")
    return expected


def _prove_stop(compose: Compose, targets: Sequence[str], expected: Mapping[str, str]) -> None:
    """Gateways are asked to end first, and wait for their streams while the others go on."""
    streams = _start_streams(targets)
    wait_until("streams are well under way", progress(streams, _MAX_TOKENS * 3 // 4), 120)
    if all(stream.is_complete for stream in streams):
        raise ProofFailed("every stream had ended before the stop: nothing is shown")
    compose("stop", "--timeout", "60")
    _finish(streams, expected)
    print("stopped in the middle of streams: every one ended with its whole text")


def _environment() -> dict[str, str]:
    """What the private engine builds reaches the package index by this machine's own network."""
    environ = engine_environment()
    if environ.get("DOCKER_HOST") != os.environ.get("DOCKER_HOST"):
        environ.setdefault("CHAIRLIFT_BUILD_NETWORK", "host")
    return environ


def _port(name: str) -> str:
    lines = (FOLDER / ".env").read_text().splitlines()
    return os.environ.get(name) or next(line.partition("=")[2] for line in lines if line.startswith(f"{name}="))


def main() -> int:
    """0 when all of it held."""
    compose = Compose(_environment())
    targets = [f"127.0.0.1:{_port('GATEWAY_A_PORT')}", f"127.0.0.1:{_port('GATEWAY_B_PORT')}"]
    try:
        if "--no-build" not in sys.argv[1:]:
            compose("build")
        compose("up", "--detach")
        _prove_stop(compose, targets, _prove(compose, targets))
    except ProofFailed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        compose("logs", "--tail", "50")
        return 1
    finally:
        compose("down", "--volumes", "--timeout", "60")
    print("compose: all of it held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
