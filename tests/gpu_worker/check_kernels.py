"""Every proof of the GPU's kernels that needs no GPU, each in a process of its own: ``make check-kernels``.

A read out of bounds ends an interpreter or an emulated kernel with a signal: then that proof alone is lost. As many
run at once as there are cores; each one's output comes when it ends. Exits 1 when one fails. ``python -m
tests.gpu_worker.check_kernels NAME …`` runs those alone.
"""

import contextlib
import importlib.util
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROOF_TIMEOUT_S = 900
"""Against a hang only."""
_TESTS = "tests.gpu_worker"


@dataclass(frozen=True)
class Proof:
    """A module that exits 0 where what it proves holds."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    is_interpreted: bool = False
    """Under Triton's interpreter, which a process has or has not from its start on."""

    def environment(self) -> dict[str, str]:
        """One thread each: other proofs have the other cores."""
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        paths = (str(ROOT), str(ROOT / "proto"), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment.pop("TRITON_INTERPRET", None)
        if self.is_interpreted:
            environment["TRITON_INTERPRET"] = "1"
        return environment


def all_proofs() -> list[Proof]:
    """The longest first, so that no core is idle at the end."""
    compiled, interpreted = f"{_TESTS}.kernels_triton.compiled", f"{_TESTS}.kernels_triton.interpreter"
    halves = ("1/2", "2/2")
    return [
        *(Proof(f"compiled-{half[0]}", f"{compiled}.compile_all", ("--part", half)) for half in halves),
        *(Proof(f"planted-{half[0]}", f"{interpreted}.mutants", ("--part", half), True) for half in halves),
        Proof("cuda-emulated", f"{_TESTS}.kernels_cuda.emulation.check"),
        Proof("attention", f"{interpreted}.run", ("attention", "decode"), True),
        Proof("operations", f"{interpreted}.run", ("ops", "int8", "plan", "sampling"), True),
        Proof("runner", f"{interpreted}.run", ("runner",), True),
        Proof("gpu-script", f"{interpreted}.dry_run", (), True),
        Proof("hidden-syncs", f"{compiled}.hidden_syncs"),
        Proof("cuda-compiled", f"{_TESTS}.kernels_cuda.compile_all"),
    ]


@dataclass(frozen=True)
class Outcome:
    """Of a proof."""

    proof: Proof
    code: int
    seconds: float
    output: str


class Running:
    """Processes of proofs in work. Each has a group of its own, since a proof may have processes of its own too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._has_ended = False

    def add(self, pid: int) -> None:
        """A proof began; one that begins after the end is ended at once."""
        with self._lock:
            self._pids.add(pid)
            if self._has_ended:
                end_group(pid)

    def remove(self, pid: int) -> None:
        """It ended."""
        with self._lock:
            self._pids.discard(pid)

    def end(self) -> None:
        """Leaves none behind."""
        with self._lock:
            self._has_ended = True
            for pid in self._pids:
                end_group(pid)


def end_group(pid: int) -> None:
    """Kills a proof with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run(proof: Proof, running: Running) -> Outcome:
    """Runs a proof to its end."""
    started = time.monotonic()
    command = [sys.executable, "-m", proof.module, *proof.arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=proof.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        running.add(process.pid)
        try:
            output, _ = process.communicate(timeout=PROOF_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            output, _ = process.communicate()
            output += f"\nstopped after {PROOF_TIMEOUT_S} s\n"
        finally:
            running.remove(process.pid)
    return Outcome(proof, process.returncode, time.monotonic() - started, output)


def run_all(proofs: Sequence[Proof], num_jobs: int) -> Iterator[Outcome]:
    """As they end. Whatever ends this ends them."""
    running = Running()
    with ThreadPoolExecutor(num_jobs) as pool:
        try:
            for done in as_completed([pool.submit(run, proof, running) for proof in proofs]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()


def main(names: Sequence[str]) -> int:
    """Exit code."""
    if importlib.util.find_spec("triton") is None:
        is_expected = (platform.system(), platform.machine()) == ("Linux", "x86_64")
        print("check-kernels: the package triton is not installed (it is for Linux x86-64): nothing is proven")
        return 1 if is_expected else 0
    proofs = [proof for proof in all_proofs() if not names or proof.name in names]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started, failed = time.monotonic(), []
    for outcome in run_all(proofs, os.cpu_count() or 1):
        held = "ok" if outcome.code == 0 else f"FAILED, exit code {outcome.code}"
        print(f"== {outcome.proof.name}: {held}, {outcome.seconds:.0f} s\n{outcome.output}", flush=True)
        if outcome.code:
            failed.append(outcome.proof.name)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, cpu_seconds = time.monotonic() - started, used.ru_utime + used.ru_stime
    outcome_text = ", ".join(failed) or "none"
    print(f"{len(proofs)} proofs in {seconds:.0f} s, {cpu_seconds:.0f} s of processors: {outcome_text} failed")
    return 1 if failed or not proofs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
