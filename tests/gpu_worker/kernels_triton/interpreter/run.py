"""Runs groups of cases under Triton's interpreter: ``TRITON_INTERPRET=1 python -m … GROUP …``; exits 1 on a failure."""

import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch

from tests.gpu_worker.kernels_triton.interpreter import repair

Cases = Iterator[tuple[str, Callable[[], float]]]
_HOME = "tests.gpu_worker.kernels_triton.interpreter"
GROUPS = {
    "attention": ("cases_attention", "attention_cases"),
    "decode": ("cases_attention", "decode_cases"),
    "ops": ("cases_ops", "ops_cases"),
    "int8": ("cases_ops", "int8_cases"),
    "sampling": ("cases_sampling", "sampling_cases"),
    "sampling-step": ("cases_sampling", "one_step_cases"),
    "plan": ("cases_plan", "plan_cases"),
    "runner": ("cases_runner", "runner_cases"),
}


def failures_of(group: str, *, stop_at_first: bool = False) -> list[str]:
    """Runs the cases of a group, prints a line each, returns those that failed."""
    module, function = GROUPS[group]
    cases: Cases = getattr(importlib.import_module(f"{_HOME}.{module}"), function)()
    torch.manual_seed(20)
    failed = []
    for name, check in cases:
        start = time.perf_counter()
        try:
            outcome = f"ok    {check():.1e}"
        # The interpreter wraps what a kernel raises; whatever it is, the other cases still run.
        except Exception as error:  # noqa: BLE001
            outcome = "FAIL"
            failed.append(f"{name}: {type(error).__name__}: {str(error).strip()[-300:]}")
            if stop_at_first:
                break
        print(f"{outcome:14s} {time.perf_counter() - start:6.2f} s  {name}", flush=True)
    return failed


def main(groups: list[str]) -> int:
    """Exit code of the run."""
    torch.set_num_threads(1)
    # numpy says so for every masked -inf - -inf that the kernels then select away.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    repair.install()
    failed = [failure for group in groups for failure in failures_of(group)]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
