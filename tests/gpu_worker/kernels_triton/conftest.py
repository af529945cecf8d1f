"""Proof of the Triton kernels without a GPU. Each proof is a process of its own: see the modules in `interpreter/`."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Against a hang only: the longest takes a minute where two cores are free.
PROOF_TIMEOUT_S = 600


@pytest.fixture(scope="session", autouse=True)
def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip(
            "the package triton is not installed (it comes with the CUDA builds of torch): its kernels are unproven"
        )


@pytest.fixture(scope="session")
def run_proof() -> Callable[..., str]:
    """Runs ``python -m tests.gpu_worker.kernels_triton.MODULE ARGUMENTS``, fails unless it exits 0, returns its output.

    A read out of bounds ends the interpreter with a segmentation fault: then only that process is lost.
    """

    def run(module: str, *arguments: str, interpret: bool = True) -> str:
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), str(ROOT / "proto"), *filter(None, [environment.get("PYTHONPATH")])]
        )
        environment.pop("TRITON_INTERPRET", None)
        if interpret:
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, "-m", f"tests.gpu_worker.kernels_triton.{module}", *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as proof:
            try:
                output, errors = proof.communicate(timeout=PROOF_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # A proof may have processes of its own: none is left behind.
                os.killpg(proof.pid, signal.SIGKILL)
                raise
        assert proof.returncode == 0, f"{module} exited {proof.returncode}\n{output}\n{errors[-4000:]}"
        return output

    return run
