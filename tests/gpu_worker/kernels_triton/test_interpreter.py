"""Every kernel against its torch reference on the CPU, over pages whose unowned slots are NaN."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(660)


@pytest.mark.parametrize("group", ["attention", "decode", "ops", "sampling", "plan", "runner"])
def test_kernels_equal_their_references(group: str, run_proof: Callable[..., str]) -> None:
    print(run_proof("interpreter.run", group))


def test_planted_bugs_are_caught(run_proof: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    report = run_proof("interpreter.mutants")
    with capsys.disabled():
        print(f"\n{report.splitlines()[-1]}")
    assert "SURVIVED" not in report


def test_the_gpu_script_runs_through_without_one(run_proof: Callable[..., str], tmp_path: Path) -> None:
    """Its logic must not fail for the first time on a machine that is at hand for minutes."""
    print(run_proof("interpreter.dry_run", str(tmp_path)))
    held = json.loads((tmp_path / "gpu_check.json").read_text())
    assert held["failures"] == []
    assert {"machine", "ceilings", "correct", "decode", "prefill", "engine", "service"} <= set(held["parts"])
    assert len(held["parts"]["engine"]) == 3
