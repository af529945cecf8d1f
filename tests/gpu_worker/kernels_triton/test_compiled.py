"""Ahead-of-time compilation: what the interpreter passes may still not compile, and a spill is found without a GPU."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(660)


def test_every_kernel_compiles_without_spills(
    run_proof: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    table = run_proof("compiled.compile_all", interpret=False)
    with capsys.disabled():
        print(f"\n{table}")
    assert "0 faults" in table


def test_no_step_makes_the_host_wait(run_proof: Callable[..., str]) -> None:
    report = run_proof("compiled.hidden_syncs", interpret=False)
    print(report)
    assert "MISSED" not in report
