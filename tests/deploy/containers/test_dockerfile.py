"""The Dockerfile: a target a process, none as root, no index of packages named; and the scripts that it runs."""

import http.server
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text()


def _stages() -> dict[str, str]:
    """What stands in each stage, by its name."""
    parts = re.split(r"^FROM (?:\S+) AS (\S+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("target", ["gateway", "scheduler", "worker", "init"])
def test_each_process_has_a_target_that_is_not_root(target: str) -> None:
    stages = _stages()
    users = re.findall(r"^USER (\S+)$", stages["runtime"] + stages[target], flags=re.MULTILINE)
    assert users[-1] == "10001:10001"
    assert "ENTRYPOINT" in stages[target]
    assert "org.opencontainers.image.title" in stages[target]


@pytest.mark.parametrize(("target", "port"), [("gateway", 9460), ("scheduler", 9470), ("worker", 9480)])
def test_health_is_what_the_process_says(target: str, port: int) -> None:
    stage = _stages()[target]
    assert f'"/opt/chairlift/healthcheck.py", "{port}"]' in stage
    assert f"METRICS_LISTEN=0.0.0.0:{port}" in stage


@pytest.mark.parametrize("target", ["gateway", "scheduler", "worker"])
def test_the_first_process_is_the_supervisor(target: str) -> None:
    assert f'ENTRYPOINT ["chairlift", "supervise", "{target}"]' in _stages()[target]


def test_the_supervisor_needs_nothing_that_a_slim_image_lacks() -> None:
    program = (
        "import sys\n"
        "from deploy.cli.main import main\n"
        "try:\n    main(['supervise', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "sys.exit(' '.join(sorted({'grpc', 'torch', 'numpy', 'tokenizers', 'gguf'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stderr.strip(), "keep running" in done.stdout) == ("", True)


def test_torch_is_in_the_worker_only() -> None:
    requirements = [sys.executable, str(FOLDER / "requirements.py"), str(ROOT / "pyproject.toml")]
    for extras, has_torch in ((["gateway", "otlp"], False), (["scheduler", "otlp"], False), (["worker", "otlp"], True)):
        lines = subprocess.run([*requirements, *extras], capture_output=True, text=True, check=True).stdout.splitlines()
        assert any(line.startswith("torch==") for line in lines) is has_torch, extras
        assert any(line.startswith("opentelemetry-exporter-otlp") for line in lines)


def test_versions_agree() -> None:
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "proto" / "chairlift" / "__init__.py").read_text())
    assert version is not None
    assert f"ARG VERSION={version[1]}" in TEXT
    assert f"CHAIRLIFT_TAG={version[1]}" in (ROOT / "deploy" / "compose" / ".env").read_text()
    model = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["smollm2"][0]
    assert model in TEXT


def test_what_is_copied_is_not_ignored() -> None:
    """The context's ignore file names what goes in; everything else stays out."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            path = source.removeprefix("./")
            assert any(one == path or one.startswith(f"{path}/") or path.startswith(f"{one}/") for one in kept), path
            assert (ROOT / path).exists(), path


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.end_headers()
        self.wfile.write(b"no worker\n")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def _healthcheck(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-IS", str(FOLDER / "healthcheck.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def test_the_healthcheck_says_why_not(port: int) -> None:
    assert _healthcheck(str(port)) == (1, "no worker")
    assert _healthcheck(str(port), "/livez")[0] == 0
    assert _healthcheck("1")[0] == 1
