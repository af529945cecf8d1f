"""The pods of an overlay, run by Docker as Kubernetes would run them: started, streamed through, ended amid a stream.

Needs a Docker engine, the images that `make compose-test` builds, and kubectl or kustomize:

    python deploy/kubernetes/proof.py [overlay]

A pod is a container that holds the network, its volumes, init containers in order, then all containers: images,
environment, rights, mounts and preStop are the rendered manifests'. What a cluster does itself is not shown: Services,
network policies, the kubelet's restarts.
"""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from deploy.container_proof import ProofFailed, Stream, engine_environment, finish, progress, wait_until

FOLDER = Path(__file__).resolve().parent
_DOCKER = "docker"
_NETWORK = _PREFIX = "chairlift-pods"
_KEYS = f"{_PREFIX}-all-keys"
_INIT_IMAGE = "chairlift-init:0.1.0"
_ALIASES = {"gateway": "chairlift-gateway", "replica": "chairlift-replica"}
_SECRETS = {
    "chairlift-gateway-keys": {"gateway.key": "secret.key", "schedulers.pub": "schedulers.pub"},
    "chairlift-scheduler-keys": {"scheduler.key": "secret.key", "gateways.pub": "gateways.pub"},
}
"""What components/curve says that they hold."""
_OWNER = "uid=0,gid=10001,mode=2777"
"""Of an emptyDir with fsGroup 10001."""
_START_TIMEOUT_S = 300.0
_BEGIN_TIMEOUT_S = 60.0
_MAX_TOKENS = 1500

Object = dict[str, Any]


class Docker:
    """The engine's command line."""

    def __init__(self) -> None:
        self._environ = engine_environment()

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A command that goes on."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen([_DOCKER, *arguments], env=self._environ, stdout=quiet, stderr=quiet)

    def is_done(self, *arguments: str) -> bool:
        """Runs a command. Whether it went well."""
        return self.start(*arguments).wait() == 0

    def __call__(self, *arguments: str) -> str:
        """Runs a command. Raises ProofFailed."""
        done = subprocess.run([_DOCKER, *arguments], env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProofFailed(f"docker {' '.join(arguments)}: {done.stderr.strip()} {done.stdout.strip()}")
        return done.stdout.strip()


class Pod:
    """One pod of a rendered template. `settings` is the ConfigMap that it takes its environment from."""

    def __init__(self, docker: Docker, component: str, spec: Object, settings: dict[str, str]) -> None:
        self.name = f"{_PREFIX}-{component}"
        self._docker = docker
        self._alias = _ALIASES[component]
        self._spec = spec
        self._settings = settings

    @property
    def containers(self) -> list[str]:
        """Names within the pod."""
        return [one["name"] for one in self._spec["containers"]]

    def start(self) -> None:
        """Network, volumes, init containers, containers. Raises ProofFailed."""
        image, sleep = self._spec["containers"][0]["image"], ("--entrypoint", "sleep")
        for volume in self._spec["volumes"]:
            self._make_volume(volume)
        # Holds the volumes in memory as well: they would be emptied when nobody uses them.
        held = [part for one in self._spec["volumes"] for part in ("-v", f"{self._volume(one['name'])}:/{one['name']}")]
        network = ("--network", _NETWORK, "--network-alias", self._alias, "--publish", "127.0.0.1::50051")
        self._docker("run", "-d", "--name", self.name, *network, "--user", "10001", *held, *sleep, image, "infinity")
        for container in self._spec["initContainers"]:
            self._docker("run", "--rm", *self._arguments(container), container["image"])
        for container in self._spec["containers"]:
            self._docker("run", "-d", *self._arguments(container), container["image"])

    def is_ready(self) -> bool:
        """Whether every container answers its readiness probe."""
        return all(self._is_ready(container) for container in self._spec["containers"])

    def target(self) -> str:
        """Where this machine reaches the gateway's port."""
        return self._docker("port", self.name, "50051").splitlines()[0]

    def end(self) -> dict[str, float]:
        """preStop in all containers at once, each then gets its SIGTERM. Seconds until each has ended, by name."""
        began, ended = time.monotonic(), dict[str, float]()
        enders = [threading.Thread(target=self._end, args=(one, began, ended)) for one in self._spec["containers"]]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(self._spec["terminationGracePeriodSeconds"])
        if len(ended) < len(enders):
            raise ProofFailed(f"{self.name}: only {sorted(ended)} ended well within the grace period")
        return ended

    def _end(self, container: Object, began: float, ended: dict[str, float]) -> None:
        name = f"{self.name}-{container['name']}"
        self._docker.is_done("exec", name, *container["lifecycle"]["preStop"]["exec"]["command"])
        self._docker("kill", "--signal", "TERM", name)
        if self._docker("wait", name) == "0":
            ended[container["name"]] = time.monotonic() - began

    def _is_ready(self, container: Object) -> bool:
        probe = container["readinessProbe"]["httpGet"]
        port = next(one["containerPort"] for one in container["ports"] if one["name"] == probe["port"])
        check = ("python3", "-IS", "/opt/chairlift/healthcheck.py", str(port), probe["path"])
        return self._docker.is_done("exec", f"{self.name}-{container['name']}", *check)

    def _volume(self, name: str) -> str:
        return f"{self.name}-{name}"

    def _make_volume(self, volume: Object) -> None:
        name = self._volume(volume["name"])
        if "secret" not in volume:
            options = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o={_OWNER}")
            self._docker("volume", "create", "--driver", "local", *options, name)
            return
        mode = f"{volume['secret']['defaultMode']:o}"
        copies = "; ".join(f"cp /all/{a} /to/{b}" for a, b in _SECRETS[volume["secret"]["secretName"]].items())
        script = f"set -e; {copies}; chown -R 0:10001 /to; chmod 755 /to; chmod {mode} /to/*"
        _run_as_root(self._docker, script, "-v", f"{_KEYS}:/all:ro", "-v", f"{name}:/to")

    def _arguments(self, container: Object) -> list[str]:
        rights, pod = container["securityContext"], self._spec["securityContext"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        found = ["--name", f"{self.name}-{container['name']}", "--network", f"container:{self.name}", "--read-only"]
        found += ["--user", f"{pod['runAsUser']}:{pod['runAsGroup']}", "--security-opt", "no-new-privileges"]
        found += [part for one in rights["capabilities"]["drop"] for part in ("--cap-drop", one)]
        found += ["--memory", container["resources"]["limits"]["memory"].removesuffix("i")]
        environ = dict(self._settings) if "envFrom" in container else {}
        environ |= {one["name"]: one.get("value", self.name) for one in container.get("env", ())}
        found += [part for name, value in environ.items() for part in ("--env", f"{name}={value}")]
        for mount in container["volumeMounts"]:
            how = ":ro" if mount.get("readOnly") else ""
            found += ["--volume", f"{self._volume(mount['name'])}:{mount['mountPath']}{how}"]
        return found


def _run_as_root(docker: Docker, script: str, *arguments: str) -> None:
    docker("run", "--rm", "--user", "0:0", *arguments, "--entrypoint", "sh", _INIT_IMAGE, "-c", script)


def _render(overlay: str) -> list[Object]:
    tool = shutil.which("kubectl")
    command = [tool, "kustomize"] if tool else ["kustomize", "build"]
    text = subprocess.run([*command, str(FOLDER / "overlays" / overlay)], capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(text.stdout) if document]


def _pods(docker: Docker, documents: list[Object]) -> tuple[Pod, Pod]:
    settings = next(one["data"] for one in documents if one["kind"] == "ConfigMap")
    specs = {one["kind"]: one["spec"]["template"]["spec"] for one in documents if "template" in one.get("spec", {})}
    return (
        Pod(docker, "replica", specs["StatefulSet"], settings),
        Pod(docker, "gateway", specs["Deployment"], settings),
    )


def _prove(docker: Docker, replica: Pod, gateway: Pod) -> None:
    docker("network", "create", _NETWORK)
    keys = "cd /all && for one in scheduler gateway; do chairlift keys new $one.key >${one}s.pub; done"
    _run_as_root(docker, keys, "-v", f"{_KEYS}:/all")
    for pod in (replica, gateway):
        pod.start()
    names = ", ".join((*replica.containers, *gateway.containers))
    took = wait_until("every pod is ready", lambda: replica.is_ready() and gateway.is_ready(), _START_TIMEOUT_S)
    print(f"ready {took:.0f} s after the last was started: {names}")
    streams = [Stream([gateway.target()], "The best thing about trains is", _MAX_TOKENS)]
    wait_until("the stream has begun", progress(streams, 1), _BEGIN_TIMEOUT_S)
    ended = replica.end()
    finish(streams)
    told = ", ".join(f"{name} after {seconds:.1f} s" for name, seconds in sorted(ended.items(), key=lambda one: one[1]))
    print(f"replica told to end amid a stream, which got its {_MAX_TOKENS} tokens: {told}")
    if ended["worker"] < ended["scheduler"]:
        raise ProofFailed("the worker ended before the scheduler had drained")
    print(f"gateway told to end: after {gateway.end()['gateway']:.1f} s")


def _clean(docker: Docker) -> None:
    held = [f"name={_PREFIX}", "--quiet"]
    for found, remove in (
        (("ps", "--all", "--filter", *held), ("rm", "--force")),
        (("volume", "ls", "--filter", *held), ("volume", "rm", "--force")),
        (("network", "ls", "--filter", *held), ("network", "rm")),
    ):
        names = docker(*found).split()
        if names:
            docker(*remove, *names)


def main(overlay: str = "production") -> int:
    """0 when all of it held."""
    docker = Docker()
    try:
        _clean(docker)
        try:
            _prove(docker, *_pods(docker, _render(overlay)))
        finally:
            _clean(docker)
    except ProofFailed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    print(f"pods of overlay {overlay}: all of it held")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
