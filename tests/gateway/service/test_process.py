"""``python -m gateway`` as a process: exit codes, and a signal."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.runtime.model_source import ModelSource

_WAIT_S = 60


def _start(*overrides: str) -> "subprocess.Popen[str]":
    arguments = [part for override in overrides for part in ("--set", override)]
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _settings(tmp_path: Path, model: ModelSource) -> list[str]:
    return [
        f"model.source={model.path}",
        f"ipc.run_dir={tmp_path / 'run'}",
        "gateway.listen=127.0.0.1:0",
        "gateway.ops_listen=127.0.0.1:0",
        "gateway.metrics_listen=127.0.0.1:0",
        "telemetry.log_format=json",
    ]


def test_starts_without_a_scheduler_and_ends_with_0_on_a_signal(tmp_path: Path, byte_model: ModelSource) -> None:
    process = _start(*_settings(tmp_path, byte_model))
    assert process.stdout is not None
    with process.stdout:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "gateway_started" in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(_WAIT_S) == 0
    assert any("gateway_stopped" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ("model.source=/nowhere/model.gguf", 3, "/nowhere/model.gguf"),
        ("gateway.listen=0.0.0.0:0", 2, "gateway.listen = 0.0.0.0:0"),
        ("gateway.ops_listen=10.1.2.3:5", 2, "allow_insecure_public"),
        ("gateway.listen=nonsense", 2, "expected HOST:PORT"),
        ("ipc.gateway_endpoint=tcp://10.0.0.1:5", 2, "plaintext to another host"),
        ("gateway.lisen=x", 2, "did you mean listen"),
    ],
)
def test_what_makes_a_start_hopeless_is_said_in_one_line(
    tmp_path: Path, byte_model: ModelSource, change: str, code: int, told: str
) -> None:
    process = _start(*_settings(tmp_path, byte_model), change)
    output, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == code
    assert told in output
    assert "Traceback" not in output


def test_a_taken_port_is_said(tmp_path: Path, byte_model: ModelSource) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = _start(*_settings(tmp_path, byte_model), f"gateway.listen=127.0.0.1:{taken.getsockname()[1]}")
        output, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 2
    assert "is the port in use?" in output


def test_a_template_that_does_not_compile_is_a_fault_of_the_model(
    tmp_path: Path, write_gguf: Any, spm_vocabulary: dict[str, list[Any]]
) -> None:
    values = {"model": "llama", "tokenizer.chat_template": "{% frobnicate %}"}
    model = write_gguf(tmp_path / "bad.gguf", **values, **spm_vocabulary)
    process = _start(*_settings(tmp_path, model))
    output, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 3
    assert "bad.gguf" in output
