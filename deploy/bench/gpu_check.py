"""Proves and times the worker on a machine with a GPU: ``python deploy/bench/gpu_check.py OUT_DIR``, under 9 minutes.

Prints a line a measurement and keeps all of them in OUT_DIR/gpu_check.json; exits 1 when a kernel differs from its
reference. Kernels need torch, triton and numpy; row state and engine also msgspec and structlog; the service what the
service needs. A part whose package is missing is named as skipped. ``--dry`` runs the logic without a GPU, under
Triton's interpreter, on sizes so small that no figure means anything.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 520.0
_ENGINE_NEEDS = ("msgspec", "structlog")
_ENGINE_S, _SERVICE_S, _PEER_S = 150.0, 180.0, 90.0


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--dry", action="store_true", help="no GPU: the logic alone")
    parser.add_argument("--seed", type=int, default=None, help="of the random shapes; default: new ones each run")
    chosen = parser.parse_args(arguments)
    for folder in (ROOT, ROOT / "proto"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "proto"), os.environ.get("PYTHONPATH", "")])
    try:
        import torch
        import triton  # noqa: F401 - named here, before any kernel asks for it
    except ImportError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if not chosen.dry and not torch.cuda.is_available():
        print("gpu_check: torch sees no CUDA device (--dry runs the logic without one)", file=sys.stderr)
        return 2
    return _run(chosen.out_dir, is_dry=chosen.dry, seed=int(time.time()) if chosen.seed is None else chosen.seed)


def _run(folder: Path, *, is_dry: bool, seed: int) -> int:
    import torch

    from deploy.bench.gpu.cuda_kernel import measure_cuda_kernel
    from deploy.bench.gpu.kernels import check_kernels, sweep_decode, sweep_others
    from deploy.bench.gpu.machine import Machine, describe_machine, measure_ceilings
    from deploy.bench.gpu.report import Report
    from deploy.bench.gpu.service import measure_peer, measure_service, missing_packages

    report = Report(folder)
    machine = Machine(torch.device("cpu" if is_dry else "cuda"), is_dry)
    describe_machine(machine, report)
    ceilings = measure_ceilings(machine, report)

    def engine() -> None:
        if missing := missing_packages(_ENGINE_NEEDS):
            report.skip("engine", f"packages missing: {', '.join(missing)}")
            return
        from deploy.bench.gpu.engine import measure_engine

        measure_engine(machine, ceilings, report, _ENGINE_S)

    def row_state() -> None:
        if missing := missing_packages(_ENGINE_NEEDS):
            report.skip("correct", f"row state and sampling: packages missing: {', '.join(missing)}")
            return
        from deploy.bench.gpu.row_state import check_row_state

        check_row_state(machine, report, seed)

    parts: list[tuple[str, float, Callable[[], None]]] = [
        ("correct", 60.0, lambda: check_kernels(machine, report, seed)),
        ("row state", 15.0, row_state),
        ("decode", 60.0, lambda: sweep_decode(machine, ceilings, report)),
        ("others", 20.0, lambda: sweep_others(machine, ceilings, report)),
        ("cuda", 15.0, lambda: measure_cuda_kernel(machine, ceilings, report)),
        ("engine", _ENGINE_S, engine),
        ("service", _SERVICE_S, lambda: measure_service(machine, report, folder)),
        ("transformers", _PEER_S, lambda: measure_peer(machine, report)),
    ]
    for name, wanted_s, part in parts:
        if report.elapsed_s + wanted_s > BUDGET_S:
            report.skip(name, f"{report.elapsed_s:.0f} s of {BUDGET_S:.0f} are gone")
            continue
        try:
            part()
        except Exception as error:  # noqa: BLE001 - one part's trouble must not cost the others their time
            report.fail(name, f"{type(error).__name__}: {str(error).strip()[-400:]}")
        if not is_dry:
            torch.cuda.empty_cache()
    print(f"{len(report.failures)} failures in {report.elapsed_s:.0f} s", flush=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
